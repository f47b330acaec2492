#include "runtime/op/core/tensor.h"

#include <gtest/gtest.h>

#include "runtime/autograd/autograd.h"
#include "runtime/autograd/slot.h"
#include "runtime/op/rows/ops.h"
#include "tests/support/expect_error.h"

namespace sherd::testing {
namespace {

TEST(Tensor, MetadataOfADenseTensor) {
  const Tensor t = Tensor::from<float>({1, 2, 3, 4, 5, 6}, {2, 3});
  EXPECT_EQ(t.shape(), (Shape{2, 3}));
  EXPECT_EQ(t.strides(), (Strides{3, 1}));
  EXPECT_EQ(t.size(-1), 3);
  EXPECT_EQ(t.numel(), 6);
  EXPECT_EQ(t.bytes(), 24);
  EXPECT_TRUE(t.is_contiguous());
  EXPECT_EQ(describe(t), "f32[2,3]");
  EXPECT_EQ(describe(Tensor()), "undefined");
  EXPECT_EQ(Tensor::scalar(2.5, DType::f64).item<double>(), 2.5);
  EXPECT_EQ(Tensor::from<std::int64_t>({7}, {1, 1}).item<int>(), 7);
}

TEST(Tensor, HandlesShareBytesAndViewsReadThroughStrides) {
  const Tensor t = Tensor::from<double>({1, 2, 3, 4, 5, 6}, {2, 3});
  const Tensor same = t;
  EXPECT_EQ(same.raw(), t.raw());
  const Tensor column = Tensor::over(t.storage(), {2}, {3}, 1, DType::f64);
  EXPECT_EQ(column.to_vector<double>(), (std::vector<double>{2, 5}));
  EXPECT_FALSE(column.is_contiguous());
  const Tensor repeated = Tensor::over(t.storage(), {2, 2}, {0, 1}, 4, DType::f64);
  EXPECT_EQ(repeated.to_vector<int>(), (std::vector<int>{5, 6, 5, 6}));
}

TEST(Tensor, WhatDoesNotFitIsAnErrorWithBothSizes) {
  const Tensor t = Tensor::from<float>({1, 2, 3}, {3});
  expect_error([&] { Tensor::over(t.storage(), {2, 2}, {2, 1}, 0, DType::f32); }, {"12 bytes"});
  expect_error([&] { Tensor::over(t.storage(), {3}, {1}, 1, DType::f32); }, {"at element 1"});
  EXPECT_NO_THROW(Tensor::over(t.storage(), {0, 9}, {9, 1}, 0, DType::f32)) << "no elements fit anywhere";
  expect_error([] { Tensor::from<float>({1, 2}, {3}); }, {"2 values do not fill shape [3]"});
  expect_error([] { Tensor::empty({2, -1}, DType::f32); }, {"[2,-1]"});
  expect_error([&] { t.item<float>(); }, {"item() needs one element, got f32[3]"});
}

TEST(Tensor, SizesThatNobodyCanCountAreErrors) {
  constexpr std::int64_t kHalf = std::int64_t{1} << 31;
  const Tensor scalar = full({}, 1.0);
  EXPECT_THROW(zeros({kHalf, kHalf}), OutOfMemory) << "2^62 elements, 2^64 bytes";
  EXPECT_THROW(zeros({3'037'000'500, 3'037'000'500}), OutOfMemory) << "a little over 2^63 elements";
  EXPECT_THROW(zeros({2 * kHalf, 2 * kHalf}, DType::u8), OutOfMemory) << "2^64 elements";
  EXPECT_THROW(zeros({0, 2 * kHalf, 2 * kHalf}), OutOfMemory) << "no elements, steps of 2^64";
  expect_error([&] { zeros({kHalf, kHalf}); }, {"out of memory", "f32[2147483648,2147483648]"});
  EXPECT_THROW(add(expand(scalar, {kHalf / 16, kHalf / 16}), 1.0), OutOfMemory) << "2^54 elements";
  for (const Shape& shape : {Shape{kHalf, kHalf}, Shape{2 * kHalf, 2 * kHalf}, Shape{3'037'000'500, 3'037'000'500}})
    expect_error([&] { expand(scalar, shape); }, {to_string(shape)});
  EXPECT_THROW(reshape(zeros({0}), {2 * kHalf, 2 * kHalf}), Error);
  EXPECT_THROW(Tensor::empty({kHalf, kHalf}, DType::f32, Device::meta()), Error);
  EXPECT_THROW(Storage::allocate(-1, MemoryCategory::activations), Error);
}

TEST(Tensor, MetaHasShapesAndNoBytes) {
  const Tensor t = Tensor::empty({1'000'000, 1'000'000}, DType::f32, Device::meta());
  EXPECT_TRUE(t.is_meta());
  EXPECT_FALSE(t.storage());
  EXPECT_EQ(t.numel(), 1'000'000'000'000);
  expect_error([&] { t.to_vector<float>(); }, {"has no values; materialize the model first"});
  EXPECT_THROW(Tensor::empty({1}, DType::f32, Device::cuda(0)), Error);
}

TEST(Tensor, DetachAndAliasShareBytesWithoutHistory) {
  Slot slot("x", true);
  slot.set(Tensor::from<float>({1, 2}, {2}));
  const Tensor y = neg(slot.value()), d = y.detach();
  EXPECT_TRUE(y.requires_grad());
  EXPECT_FALSE(d.requires_grad());
  EXPECT_EQ(d.grad_node(), nullptr);
  EXPECT_EQ(d.raw(), y.raw());
  EXPECT_EQ(d.detach().impl(), d.impl()) << "nothing to forget";
  EXPECT_NE(d.alias().impl(), d.impl());
  EXPECT_EQ(d.alias().raw(), d.raw());
}

// ---- a layout, as dtensor implements it: rows of a matrix over two ranks; this is rank 1 ----

class SecondHalf final : public Distributed {
 public:
  Shape local_shape(const Shape& shape) const override {
    Shape local = shape;
    local[0] = shape[0] / 2;
    return local;
  }
  bool is_partial() const override { return false; }
  bool is_replicated() const override { return false; }
  const Distributed* replicated() const override { return nullptr; }
  std::string describe() const override { return "{0: dp}"; }
};

TEST(Tensor, DistributedShowsTheGlobalShapeAndHoldsTheLocalPart) {
  const LayoutRef layout(new SecondHalf);
  const Tensor local = Tensor::from<float>({5, 6, 7, 8}, {2, 2});
  const Tensor t = Tensor::distributed({4, 2}, layout, local);
  EXPECT_TRUE(t.is_distributed());
  EXPECT_EQ(t.shape(), (Shape{4, 2}));
  EXPECT_EQ(t.local().raw(), local.raw());
  EXPECT_EQ(describe(t), "f32[4,2]{0: dp}");
  EXPECT_EQ(describe(t.alias()), "f32[4,2]{0: dp}");
  expect_error([&] { t.to_vector<float>(); }, {"is distributed over ranks; use full_tensor() or local()"});
  expect_error([&] { Tensor::distributed({6, 2}, layout, local); }, {"has local shape [3,2] here, got"});
  expect_error([&] { Tensor::distributed({4, 2}, nullptr, local); }, {"[4,2]", "given no layout"});
  expect_error([&] { Tensor::over({}, {2}, {1}, 0, DType::f32); }, {"f32[2]", "given no storage"});
}

TEST(Tensor, SavedDistributedTensorsCheckTheVersionOfTheirLocalBytes) {
  const LayoutRef layout(new SecondHalf);
  const Tensor local = Tensor::from<float>({5, 6, 7, 8}, {2, 2});
  SavedTensor saved(Tensor::distributed({4, 2}, layout, local));
  EXPECT_NO_THROW(saved.unpack());
  fill_into(local, 0);
  expect_error([&] { saved.unpack(); }, {"has been written since (version 0, now 1)"});
}

}  // namespace
}  // namespace sherd::testing
