// Ghost ranks: storages that are accounted as any other and have no bytes.
#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "nn/layers/linear.h"
#include "nn/optim/adamw.h"
#include "nn/optim/clip.h"
#include "runtime/autograd/autograd.h"
#include "runtime/comm/group/process_group.h"
#include "runtime/exec/context.h"
#include "runtime/exec/queue.h"
#include "runtime/op/core/host_reads.h"
#include "runtime/op/rows/ops.h"
#include "tests/support/expect_error.h"

namespace sherd::testing {
namespace {

using enum MemoryCategory;

constexpr RankOptions kGhost{.ghost = true};
constexpr Device kGpu = Device::cuda(0);

Accounting& account(Device device = Device::cpu()) { return RankContext::current().allocator(device).accounting(); }

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

// ---- queues ----

TEST(Ghost, WorkHoldsItsStoragesAndNeverRuns) {
  bool has_run = false;  // outlives the queues of the rank, whose work would set it
  const RankScope rank("", kGhost);
  Queue& queue = RankContext::current().queue("gather");
  const Ref<Storage> out = Storage::allocate(10, unsharded);
  Ref<Storage> in = Storage::allocate(100, gradients);
  const auto submit = [&](std::vector<Loan> loans) {
    queue.submit({.name = "work", .run = [&] { has_run = true; }, .loans = loans});
  };
  submit({{out, true}, {in, false}});
  in = {};
  ASSERT_EQ(account().current(gradients), 100) << "held until somebody waits";
  ASSERT_TRUE(out->is_lent_for_writing());
  submit({{out, true}});
  out->wait_to_read();
  EXPECT_FALSE(out->is_lent());
  EXPECT_EQ(account().current(gradients), 0);
  EXPECT_FALSE(has_run);
}

// As on any rank: what an item came after is over when it is.
TEST(Ghost, WaitingForWorkLetsGoOfWhatItCameAfter) {
  const RankScope rank("", kGhost);
  RankContext& context = RankContext::current();
  Ref<Storage> in = Storage::allocate(100, gradients);
  const Ref<Storage> between = Storage::allocate(10, activations), out = Storage::allocate(10, activations);
  const auto submit = [&](std::string_view queue, const Ref<Storage>& from, const Ref<Storage>& to) {
    const Loan loans[] = {{from, false}, {to, true}};
    context.queue(queue).submit({.name = "work", .run = [] {}, .loans = loans});
  };
  submit("reduce", in, between);
  submit("gather", between, out);
  in = {};
  EXPECT_EQ(account().current(gradients), 100) << "the program has not waited for it";
  out->wait_to_read();
  EXPECT_EQ(account().current(gradients), 0);
}

// ---- rows ----

constinit const Op kNoKernel{.name = "ghost_test.no_kernel",
                             .infer = [](const InferCall& c) { return Metas{c.in[0]}; }};

TEST(Ghost, KernelsAreSkippedAndScratchIsCounted) {
  static int runs = 0;
  static constinit const Op kCounted{.name = "ghost_test.counted",
                                     .infer = [](const InferCall& c) { return Metas{c.in[0]}; }};
  add_rows([](OpTable& table) {
    table.add({&kCounted, &kNoKernel});
    table.kernel(
        kCounted, Device::Kind::cpu, [](const KernelCall&) { ++runs; },
        [](const InferCall&) { return std::int64_t{640}; });
  });
  const RankScope rank("", kGhost);
  const Tensor x = Tensor::empty({5}, DType::f32);
  const Tensor y = call(kCounted, {}, x), z = call(kNoKernel, {}, x);
  EXPECT_EQ(runs, 0);
  EXPECT_EQ(account().current(activations), 60);
  EXPECT_EQ(account().current(workspace), 0);
  EXPECT_EQ(account().peak(workspace), 640);
}

TEST(Ghost, CollectivesOfOneRankCopyNothing) {
  const RankScope rank("", kGhost);
  const auto group = make_single_group();
  const Tensor here = Tensor::empty({4}, DType::f32), there = Tensor::empty({4}, DType::f32, kGpu);
  const Tensor gathered = all_gather(here, *group, 4, 0), part = reduce_scatter(there, *group, ReduceKind::sum, 0);
  EXPECT_EQ(gathered.shape(), Shape({4}));
  EXPECT_EQ(part.device(), kGpu);
  EXPECT_EQ(account().total(), 32);
  EXPECT_EQ(account(kGpu).total(), 32);
}

struct Mlp : nn::Layer<Mlp> {
  nn::Linear &up, &down;
  Mlp() : up(add<nn::Linear>("up", 7, 33)), down(add<nn::Linear>("down", 33, 3)) {}
  Tensor forward(const Tensor& x) { return down(relu(up(x))); }
};

/// What a rank holds in the end, has held of each category, and held at its peak: after a first step, and of another.
std::array<CategoryBytes, 6> bytes_of_training(RankOptions options) {
  const RankScope rank("", options);
  Mlp model;
  model.materialize();
  nn::AdamW optimizer(model.parameters());
  std::array<CategoryBytes, 6> bytes{};
  for (std::size_t step = 0; step < 2; ++step) {
    backward(mean(square(model(random_normal({12, 7}, step)))));
    nn::clip_grad_norm(optimizer, 1);
    optimizer.step();
    optimizer.clear_gradients();
    bytes[3 * step] = account().current();
    bytes[3 * step + 1] = account().peak();
    bytes[3 * step + 2] = account().at_peak();
    account().reset_peaks();
  }
  return bytes;
}

TEST(Ghost, ATrainingStepHoldsWhatItHoldsOnARealRank) {
  const auto ghost = bytes_of_training(kGhost);
  EXPECT_EQ(ghost, bytes_of_training({}));
  for (const MemoryCategory category : {parameters, gradients, optimizer, activations})
    EXPECT_GT(ghost[1][static_cast<std::size_t>(category)], 0) << name(category);
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
