// The dispatcher: when memory is reused and when it must not be, destinations, devices, and what errors carry.
#include "runtime/op/core/dispatch.h"

#include <gtest/gtest.h>

#include "runtime/autograd/autograd.h"
#include "runtime/autograd/slot.h"
#include "runtime/exec/context.h"
#include "runtime/op/rows/ops.h"
#include "runtime/op/rows/view_attrs.h"
#include "tests/support/draw.h"
#include "tests/support/near.h"

namespace sherd::testing {
namespace {

Tensor sample() { return Tensor::from<float>({1, 2, 3, 4, 5, 6}, {2, 3}); }

bool shares(const Tensor& t, const std::byte* data) { return t.storage()->read() == data; }

// ---- donation ----

TEST(Donation, AMovedInSoleOwnerGivesItsMemory) {
  Tensor a = sample();
  const std::byte* data = a.storage()->read();
  const Tensor b = neg(std::move(a));
  EXPECT_TRUE(shares(b, data));
  EXPECT_EQ(b.to_vector<double>(), (std::vector<double>{-1, -2, -3, -4, -5, -6}));
  EXPECT_FALSE(a.defined());
}

TEST(Donation, AChainOfTemporariesUsesOneBuffer) {
  Accounting& account = RankContext::current().allocator().accounting();
  const Tensor a = full({1000}, 2.0);
  account.reset_peaks();
  const std::int64_t before = account.total();
  const Tensor b = sqrt(add(mul(square(a), 2.0), 1.0));
  EXPECT_EQ(b.to_vector<double>()[999], 3);
  EXPECT_EQ(account.total_peak() - before, 4000);
}

TEST(Donation, ALiveLocalIsNeverWritten) {
  const Tensor a = sample();
  const Tensor b = neg(a), c = mul(a, 10);
  EXPECT_FALSE(shares(b, a.storage()->read()));
  EXPECT_FALSE(shares(c, a.storage()->read()));
  EXPECT_TRUE(same_bits(a, sample()));
}

TEST(Donation, ASecondHandleOrAViewKeepsTheMemory) {
  Tensor a = sample();
  const Tensor same = a;
  EXPECT_FALSE(shares(neg(std::move(a)), same.storage()->read()));
  EXPECT_TRUE(same_bits(same, sample()));

  Tensor b = sample();
  const Tensor row = narrow(b, 0, 0, 1);  // the storage has two users, though the handle has one
  EXPECT_FALSE(shares(neg(std::move(b)), row.storage()->read()));
  EXPECT_EQ(row.to_vector<double>(), (std::vector<double>{1, 2, 3}));
}

TEST(Donation, AMovedInViewIsNotReused) {
  for (const bool offset : {false, true}) {
    Tensor whole = sample();
    const std::byte* data = whole.storage()->read();
    Tensor view = narrow(std::move(whole), 0, offset ? 1 : 0, 1);  // a slice of a larger storage
    EXPECT_FALSE(shares(neg(std::move(view)), data));
  }
  Tensor whole = sample();
  const std::byte* data = whole.storage()->read();
  EXPECT_FALSE(shares(neg(transpose(std::move(whole), 0, 1)), data));
}

TEST(Donation, AnotherShapeOrDTypeIsNotReused) {
  Tensor a = Tensor::from<float>({1, 2, 3}, {3});
  const std::byte* data = a.storage()->read();
  const Tensor grown = add(std::move(a), sample());  // [3] + [2,3]
  EXPECT_FALSE(shares(grown, data));
  Tensor b = sample();
  data = b.storage()->read();
  EXPECT_FALSE(shares(less(std::move(b), sample()), data));
  Tensor c = sample(), d = Tensor::from<float>({1, 2, 3}, {3});
  data = c.storage()->read();
  const Tensor sum = add(std::move(d), std::move(c));  // the second input fits
  EXPECT_TRUE(shares(sum, data));
  EXPECT_EQ(sum.to_vector<double>(), (std::vector<double>{2, 4, 6, 5, 7, 9}));
}

TEST(Donation, WhatTheTapeSavedIsNotReused) {
  Slot slot("x", true);
  slot.set(sample());
  Tensor y = mul(slot.value(), 2);  // not saved by its own row
  const std::byte* data = y.storage()->read();
  Tensor z = square(std::move(y));  // saves its input
  EXPECT_FALSE(shares(z, data));
  Tensor e = exp(mul(slot.value(), 0.5));  // saves its result
  data = e.storage()->read();
  const Tensor f = neg(std::move(e));
  EXPECT_FALSE(shares(f, data));
  backward(sum(add(z, f)));
  std::vector<double> expected;
  for (double x : sample().to_vector<double>()) expected.push_back(8 * x - 0.5 * std::exp(0.5 * x));
  EXPECT_TRUE(near(slot.grad(), Tensor::from<double>(expected, {2, 3}), 1e-5));
}

TEST(Donation, BorrowedAndOwnedByAUnitStayAsTheyAre) {
  std::vector<float> file = {1, 2, 3, 4};
  Tensor mapped = Tensor::over(Storage::borrow(file.data(), 16, {}), {4}, {1}, 0, DType::f32);
  const Tensor doubled = mul(std::move(mapped), 2);
  EXPECT_EQ(file, (std::vector<float>{1, 2, 3, 4})) << "a file mapping was written";
  EXPECT_EQ(doubled.to_vector<double>(), (std::vector<double>{2, 4, 6, 8}));

  struct Unit final : StorageOwner {
    void ensure_present(Storage&) override {}
  } unit;
  Tensor gathered = sample();
  gathered.storage()->owner = &unit;
  const std::byte* data = gathered.storage()->read();
  EXPECT_FALSE(shares(neg(std::move(gathered)), data));
}

// ---- destinations ----

TEST(Destination, ResultLandsOrAddsAndBumpsTheVersion) {
  const Tensor out = full({2, 3}, 100.0);
  call_into(op::add, {}, out, false, sample(), sample());
  EXPECT_EQ(out.to_vector<double>(), (std::vector<double>{2, 4, 6, 8, 10, 12}));
  EXPECT_EQ(out.storage()->version(), 1u);
  call_into(op::add, {}, out, true, sample(), sample());
  EXPECT_EQ(out.to_vector<double>(), (std::vector<double>{4, 8, 12, 16, 20, 24}));
  EXPECT_EQ(out.storage()->version(), 2u);
}

TEST(Destination, ViewRowsCopyWhatTheyShow) {
  const Tensor out = full({3, 2}, 100.0);
  call_into(op::permute, PermuteAttrs{{1, 0}}, out, false, sample());
  EXPECT_EQ(out.to_vector<double>(), (std::vector<double>{1, 4, 2, 5, 3, 6}));
  call_into(op::permute, PermuteAttrs{{1, 0}}, out, true, sample());
  EXPECT_EQ(out.to_vector<double>(), (std::vector<double>{2, 8, 4, 10, 6, 12}));
}

TEST(Destination, WrongShapeOrDTypeIsAnErrorThatWritesNothing) {
  for (const Tensor& out : {full({3, 2}, 7.0), full({2, 3}, 7.0, DType::f64)}) {
    try {
      call_into(op::add, {}, out, false, sample(), sample());
      FAIL() << "no error";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("the result is f32[2,3]"), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find("op      add"), std::string::npos) << error.what();
    }
    EXPECT_EQ(out.to_vector<double>()[0], 7);
  }
}

TEST(Destination, IsNeverRecorded) {
  Slot slot("x", true);
  slot.set(sample());
  const Tensor out = zeros({2, 3});
  call_into(op::neg, {}, out, false, slot.value());
  EXPECT_FALSE(out.requires_grad());
}

TEST(Destination, CopyIntoConvertsAndFillsStridedTargets) {
  const Tensor target = with_gaps(zeros({2, 3}, DType::bf16));
  copy_into(target, sample());
  EXPECT_EQ(target.to_vector<double>(), sample().to_vector<double>());
  copy_into(target, sample(), true);
  EXPECT_EQ(target.to_vector<double>()[5], 12);
  fill_into(target, 3);
  EXPECT_EQ(target.to_vector<double>(), std::vector<double>(6, 3.0));
}

// ---- devices, errors ----

TEST(Dispatch, OneMetaInputMakesAMetaResult) {
  const Tensor meta = Tensor::empty({2, 3}, DType::f32, Device::meta());
  EXPECT_TRUE(add(meta, meta).is_meta());
  EXPECT_TRUE(mul(meta, Tensor::scalar(2)).is_meta());
  EXPECT_THROW(add(meta, sample()), Error);
  EXPECT_THROW(meta.to_vector<double>(), Error);
}

TEST(Dispatch, ManyInputsAreNotAllListed) {
  try {
    cat(std::vector<Tensor>(8, ones({2})), 3);
    FAIL() << "no error";
  } catch (const Error&) {}
  std::vector<Tensor> parts(7, ones({2, 2}));
  parts.push_back(ones({3}));
  try {
    cat(parts, 0);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("... 8 in all"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("op      cat dim=0"), std::string::npos) << error.what();
  }
}

TEST(Dispatch, AnInnerErrorKeepsTheInnermostOp) {
  try {
    linear_cross_entropy(ones({2, 3}), ones({5, 3}), Tensor::from<std::int64_t>({1, 9}, {2}));
    FAIL() << "no error";
  } catch (const Error& error) {
    const std::string text = error.what();
    EXPECT_EQ(text.find("  op "), text.rfind("  op ")) << "more than one op line:\n" << text;
    EXPECT_NE(text.find('9'), std::string::npos) << text;
  }
}

}  // namespace
}  // namespace sherd::testing
