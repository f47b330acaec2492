// Ghost ranks: storages that are accounted as any other and have no bytes.
#include <gtest/gtest.h>

#include <vector>

#include "runtime/exec/context.h"
#include "runtime/op/host_reads.h"
#include "runtime/op/ops.h"
#include "tests/support/expect_error.h"

namespace sherd::testing {
namespace {

using enum MemoryCategory;

constexpr RankOptions kGhost{.ghost = true};
constexpr Device kGpu = Device::cuda(0);

Accounting& account(Device device = Device::cpu()) {
  return RankContext::current().allocator(device).accounting();
}

TEST(Ghost, StoragesAreAccountedMovedReleasedAndRestored) {
  const RankScope rank("", kGhost);
  const Ref<Storage> s = Storage::allocate(1000, parameters), empty = Storage::allocate(0, parameters);
  EXPECT_TRUE(s->is_ghost());
  EXPECT_TRUE(s->is_present());
  EXPECT_TRUE(empty->is_present());
  EXPECT_NE(s->id(), empty->id());
  EXPECT_EQ(account().current(parameters), 1000);
  s->retag(communication);
  EXPECT_EQ(account().current(parameters), 0);
  EXPECT_EQ(account().current(communication), 1000);
  s->release_data();
  EXPECT_FALSE(s->is_present());
  EXPECT_EQ(account().total(), 0);
  s->restore_data();
  EXPECT_TRUE(s->is_present());
  EXPECT_EQ(account().current(communication), 1000);
  EXPECT_EQ(account().total_peak(), 1000);
}

TEST(Ghost, AddressesDifferAndAreAligned) {
  const RankScope rank("", kGhost);
  const Ref<Storage> a = Storage::allocate(65, activations), b = Storage::allocate(1, activations);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(a->address()) % 64, 0u);
  EXPECT_GE(b->address(), a->address() + a->bytes());
}

TEST(Ghost, HoldsMoreThanAnyMachineAndEndsAtALimit) {
  const RankScope rank("", kGhost);
  const Tensor large = Tensor::empty({std::int64_t{1} << 50}, DType::f32);
  EXPECT_EQ(account().current(activations), std::int64_t{1} << 52);
  RankContext::current().allocator().set_limit((std::int64_t{1} << 52) + 100);
  EXPECT_NO_THROW(Tensor::empty({25}, DType::f32));
  try {
    Tensor::empty({26}, DType::f32);
    FAIL() << "4 bytes over the limit";
  } catch (const OutOfMemory& error) {
    EXPECT_NE(std::string(error.what()).find("104 B"), std::string::npos) << error.what();
  }
}

TEST(Ghost, DevicesHaveAnAccountEachAndAreNotOpened) {
  const RankScope rank("", kGhost);
  const Tensor here = Tensor::empty({2}, DType::f32), there = Tensor::empty({4}, DType::f32, kGpu);
  EXPECT_EQ(account().total(), 8);
  EXPECT_EQ(account(kGpu).total(), 16);
  EXPECT_TRUE(RankContext::current().devices().empty());
  expect_error([] { RankContext::current().device(kGpu); }, {"cuda", "this rank is a ghost"});
}

TEST(Ghost, MakesTensorsOfValuesWithoutTheValues) {
  const RankScope rank("", kGhost);
  const Tensor x = Tensor::from<float>({1, 2, 3}, {3}), s = Tensor::scalar(1);
  EXPECT_EQ(x.shape(), Shape({3}));
  EXPECT_EQ(account().total(), 16);
}

TEST(Ghost, WhateverLooksAtAValueIsRefused) {
  const RankScope rank("", kGhost);
  const Tensor x = Tensor::empty({}, DType::f32);
  expect_error([&] { x.item<float>(); }, {"item()", "f32[]", "has no bytes: this rank is a ghost"});
  expect_error([&] { x.to_vector<float>(); }, {"to_vector()", "has no bytes: this rank is a ghost"});
  expect_error([&] { to_string(x); }, {"f32[]", "has no bytes: this rank is a ghost"});
  expect_error([&] { x.raw(); }, {"4 B of activations", "has no bytes: this rank is a ghost"});
  expect_error([&] { x.mutable_data<float>(); }, {"4 B of activations", "has no bytes: this rank is a ghost"});
  HostReads reads;
  expect_error([&] { reads.push({x}, [](std::span<const double>) {}); }, {"a read", "this rank is a ghost"});
}

TEST(Ghost, TensorsMayOutliveTheirRank) {
  Tensor left;
  {
    const RankScope rank("", kGhost);
    left = Tensor::empty({1000}, DType::f32, kGpu);
  }
  expect_error([&] { left.raw(); }, {"this rank is a ghost"});
}

}  // namespace
}  // namespace sherd::testing
