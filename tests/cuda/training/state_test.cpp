// The parts of training that know of devices, one by one: modules, optimizers, groups of one rank, checkpoints, reads.
#include <cmath>
#include <numeric>

#include "nn/checkpoint/training_state.h"
#include "nn/interop/huggingface.h"
#include "nn/layers/dropout.h"
#include "nn/models/model_config.h"
#include "nn/optim/adamw.h"
#include "nn/optim/clip.h"
#include "nn/optim/sgd.h"
#include "nn/parallel/shard/wrap/fully_shard.h"
#include "runtime/autograd/autograd.h"
#include "runtime/comm/board/thread_group.h"
#include "runtime/op/core/host_reads.h"
#include "runtime/op/rows/ops.h"
#include "runtime/op/unit/alone.h"
#include "tests/cuda/training/training_test.h"
#include "tests/support/expect_error.h"

namespace sherd::testing {
namespace {

const Device kCuda = Device::cuda(0);

nn::Gpt::Config tiny_gpt() {
  return {.vocabulary = 11, .tokens = 6, .layers = 1, .heads = 2, .width = 8, .bias = true, .tied_head = true};
}

using Bits = std::map<std::string, std::vector<float>>;
Bits bits_of(const nn::Module& model) {
  Bits bits;
  for (const auto& [name, p] : model.named_parameters()) bits[name] = p->value().local().to_vector<float>();
  return bits;
}

struct Buffered : nn::Module {
  Buffered() { add_buffer("table", Tensor::from<float>({1, 2, 3}, {3})); }
};

TEST_F(TrainingOnCuda, MaterializeDrawsTheBitsOfTheHost) {
  nn::Gpt host(tiny_gpt()), there(tiny_gpt());
  host.materialize({3});
  there.materialize({3}, kCuda);
  for (const nn::Parameter* p : there.parameters()) EXPECT_EQ(p->value().device(), kCuda) << p->name();
  EXPECT_EQ(bits_of(there), bits_of(host));
  Buffered buffered;
  buffered.materialize({}, kCuda);
  EXPECT_EQ(buffered.own_buffers()[0]->value().device(), kCuda);
  expect_error([] { nn::Gpt(tiny_gpt()).materialize({}, Device::meta()); }, {"meta"});
}

TEST_F(TrainingOnCuda, OptimizersKeepTheirStateOnTheDevice) {
  nn::Gpt model(tiny_gpt());
  model.materialize({}, kCuda);
  nn::AdamW optimizer(model.parameters());
  EXPECT_EQ(optimizer.step_slot().value().device(), kCuda);
  for (const nn::OptimizerState& s : optimizer.state()) EXPECT_EQ(s.slot->value().device(), kCuda) << s.parameter;
  device().synchronize();
  cuda::emulated::reset_counters();
  optimizer.set_lr(0.5);
  nn::set_step(3);
  EXPECT_EQ(cuda::emulated::counters().host_syncs, 0);
}

// A deferred model: where its parameters will be is known at the first step only.
TEST_F(TrainingOnCuda, AnOptimizerMayBeMadeBeforeTheParametersHaveBytes) {
  nn::Gpt model(tiny_gpt());
  nn::Sgd optimizer(model.parameters(), {.lr = 0.1, .momentum = 0.9});
  model.materialize({}, kCuda);
  optimizer.set_lr(0.2);
  const Tensor tokens = to(Tensor::from<std::int64_t>({1, 2, 3, 4}, {1, 4}), kCuda);
  backward(model(tokens, tokens));
  const Tensor norm = nn::clip_grad_norm(optimizer, 1.0);
  EXPECT_EQ(norm.device(), kCuda);
  optimizer.step_and_clear();
  EXPECT_EQ(optimizer.step_slot().value().device(), kCuda);
  EXPECT_EQ(optimizer.step_slot().value().item<float>(), 1.0f);
}

TEST_F(TrainingOnCuda, TheRandomStepIsReadWhereItIsNeeded) {
  nn::set_step(41);
  EXPECT_EQ(nn::random_step(kCuda).value().device(), kCuda);
  EXPECT_EQ(nn::random_step().value().item<std::int64_t>(), 41);
  nn::set_step(42);
  EXPECT_EQ(nn::random_step().value().device(), kCuda);
  EXPECT_EQ(nn::random_step(Device::cpu()).value().item<std::int64_t>(), 42);
}

TEST_F(TrainingOnCuda, GroupsOfSeveralRanksAreRefused) {
  run_ranks(2, [](const std::shared_ptr<ProcessGroup>& group) {
    nn::Gpt model(tiny_gpt());
    nn::fully_shard(model, DeviceMesh(group, "dp"));
    expect_error([&] { model.materialize({}, kCuda); }, {"2 ranks on cuda:0", "chosen_group()"});
  });
}

// A model that has values keeps them, and their device.
TEST_F(TrainingOnCuda, FullyShardTakesOverWhatIsThere) {
  nn::Gpt model(tiny_gpt());
  model.materialize({5}, kCuda);
  const Bits before = bits_of(model);
  nn::fully_shard(model, DeviceMesh(make_single_group(), "dp"), {.mp_policy = {.param_dtype = DType::bf16}});
  for (const nn::Parameter* p : model.parameters()) EXPECT_EQ(p->value().device(), kCuda) << p->name();
  EXPECT_EQ(bits_of(model), before);
}

// Oracle: the host's kernel, whose rounding other tests hold against exact arithmetic.
TEST_F(TrainingOnCuda, AReductionOfOneRankRoundsAsTheHostsDoes) {
  constexpr std::int64_t kCount = 1003;
  std::vector<float> values(kCount);
  for (std::int64_t i = 0; i < kCount; ++i)
    values[static_cast<std::size_t>(i)] = std::sin(static_cast<float>(i)) * (i % 7 == 0 ? 1e-3f : 3.0f);
  const Tensor f32 = Tensor::from(std::span<const float>(values), {kCount});
  for (const DType in : {DType::f32, DType::bf16, DType::f16})
    for (const DType wire : {DType::f32, DType::bf16})
      for (const double scale : {1.0, 0.3})
        for (const bool accumulate : {false, true}) {
          const Tensor x = cast(f32, in);
          const Tensor here = full({kCount}, 0.7), there = full({kCount}, 0.7, DType::f32, kCuda);
          reduce_alone({{x, here, wire, accumulate, scale}});
          reduce_alone({{to(x, kCuda), there, wire, accumulate, scale}});
          EXPECT_EQ(there.to_vector<float>(), here.to_vector<float>())
              << name(in) << " over " << name(wire) << " times " << scale << (accumulate ? ", added" : "");
        }
}

TEST_F(TrainingOnCuda, CheckpointsMoveBetweenDevices) {
  const auto group = make_single_group();
  nn::Gpt there(tiny_gpt());
  there.materialize({5}, kCuda);
  nn::AdamW optimizer(there.parameters());
  const Tensor tokens = to(Tensor::from<std::int64_t>({1, 2, 3, 4}, {1, 4}), kCuda);
  backward(there(tokens, tokens));
  optimizer.step_and_clear();
  ckpt::Manifest manifest;
  manifest.step = 1;
  nn::save_checkpoint(dir_ / "checkpoint", manifest, nn::training_state(there, &optimizer), *group);

  nn::Gpt here(tiny_gpt()), back(tiny_gpt());
  here.materialize();
  back.materialize({}, kCuda);
  nn::AdamW host(here.parameters()), again(back.parameters());
  const ckpt::CheckpointReader reader(dir_ / "checkpoint");
  nn::load_checkpoint(reader, nn::training_state(here, &host));
  nn::load_checkpoint(reader, nn::training_state(back, &again));
  EXPECT_EQ(bits_of(here), bits_of(there));
  EXPECT_EQ(bits_of(back), bits_of(there));
  const auto states = optimizer.state(), on_host = host.state(), loaded = again.state();
  for (std::size_t i = 0; i < states.size(); ++i) {
    EXPECT_EQ(on_host[i].slot->value().to_vector<float>(), states[i].slot->value().to_vector<float>());
    EXPECT_EQ(loaded[i].slot->value().device(), kCuda);
    EXPECT_EQ(loaded[i].slot->value().to_vector<float>(), states[i].slot->value().to_vector<float>());
  }
  EXPECT_EQ(again.step_slot().value().item<float>(), 1.0f);
}

TEST_F(TrainingOnCuda, HuggingFaceDirectoriesMoveBetweenDevices) {
  const auto group = make_single_group();
  nn::Gpt there(tiny_gpt());
  there.materialize({5}, kCuda);
  nn::save_huggingface(dir_ / "model", tiny_gpt(), there, *group, {.dtype = DType::f32});
  const nn::HuggingFaceWeights weights(dir_ / "model");
  nn::Gpt here(tiny_gpt()), back(tiny_gpt());
  here.materialize();
  back.materialize({9}, kCuda);
  weights.load(here);
  weights.load(back);
  EXPECT_EQ(bits_of(here), bits_of(there));
  EXPECT_EQ(bits_of(back), bits_of(there));
}

TEST_F(TrainingOnCuda, ReadsAreUsedInTheirOrder) {
  HostReads reads(2);
  std::vector<double> seen;
  const auto use = [&](std::span<const double> v) { seen.insert(seen.end(), v.begin(), v.end()); };
  reads.push({to(Tensor::scalar(1), kCuda), Tensor::scalar(2)}, use);
  reads.push({Tensor::scalar(3)}, use);
  reads.push({to(Tensor::scalar(4, DType::bf16), kCuda)}, use);  // the third: waits for the first
  EXPECT_EQ(seen, (std::vector<double>{1, 2}));
  reads.finish();
  EXPECT_EQ(seen, (std::vector<double>{1, 2, 3, 4}));
  EXPECT_TRUE(reads.empty());
  expect_error([&] { reads.push({Tensor::from<float>({1, 2}, {2})}, use); }, {"one element", "f32[2]"});
}

TEST_F(TrainingOnCuda, AFailedReadDropsThoseAfterIt) {
  HostReads reads;
  std::vector<double> seen;
  const auto use = [&](std::span<const double> v) { seen.insert(seen.end(), v.begin(), v.end()); };
  for (const double value : {1.0, 2.0, 3.0}) reads.push({to(Tensor::scalar(value), kCuda)}, use);
  cuda::emulated::fail_call("cudaEventSynchronize", cudaErrorLaunchFailure, 1);
  expect_error([&] { reads.finish(); }, {"reading from the device", "cudaErrorLaunchFailure"});
  EXPECT_EQ(seen, std::vector<double>{1});
  EXPECT_TRUE(reads.empty());
}

TEST_F(TrainingOnCuda, MixedDevicesAreRefused) {
  const Tensor here = Tensor::from<float>({1, 2}, {2}), there = to(here, kCuda);
  expect_error([&] { add(here, there); }, {"different devices", "cpu", "cuda:0", "to()"});
  nn::Gpt model(tiny_gpt());
  model.materialize({}, kCuda);
  const Tensor tokens = Tensor::from<std::int64_t>({1, 2, 3, 4}, {1, 4});
  expect_error([&] { model(tokens, tokens); }, {"different devices", "module"});
}

}  // namespace
}  // namespace sherd::testing
