// The training loop on a GPU. The oracle is the CPU's run, whose numbers other tests hold against closed forms and
// PyTorch: the same initial bits, losses within f32 noise, and the same bits again wherever the GPU is its own oracle.
#include "tools/train/trainer.h"

#include "runtime/autograd/autograd.h"
#include "tests/cuda/training/training_test.h"
#include "tests/support/expect_error.h"

namespace sherd::testing {

using namespace train;

namespace {

using Group = std::shared_ptr<ProcessGroup>;

/// From the given forward on, the device has no memory left.
class LimitAtForward final : public nn::ModuleHook {
 public:
  LimitAtForward(Allocator& memory, int forward) : memory_(memory), left_(forward) {}
  void before_forward(nn::Module&) override {
    if (--left_ == 0) memory_.set_limit(1);
  }

 private:
  Allocator& memory_;
  int left_;
};

TEST_F(TrainingOnCuda, F176_GivesTheLossesOfTheCpu) {
  gpt_.model.dropout = 0.2;  // the same masks
  for (const TrainConfig& config : {gpt_, llama_}) {
    const TinyRun cpu = train_tiny(config, 1), cuda = train_tiny(on_cuda(config), 1);
    EXPECT_EQ(cuda.initial, cpu.initial) << "initial bits";
    expect_close(cuda.losses, cpu.losses, 1e-5, config.model.style);
    expect_close(cuda.norms, cpu.norms, 1e-4, config.model.style);
    EXPECT_NEAR(cuda.val_loss, cpu.val_loss, 1e-5 * cpu.val_loss);
  }
}

TEST_F(TrainingOnCuda, F176_MixedPrecisionAndMicroBatchesGiveTheLossesOfTheCpu) {
  llama_.plan.micro_batches = 2;
  for (const auto& [param, reduce] : {std::pair(DType::bf16, DType::f32), std::pair(DType::bf16, DType::bf16),
                                      std::pair(DType::f32, DType::bf16), std::pair(DType::f16, DType::f32)}) {
    llama_.plan.param_dtype = param;
    llama_.plan.reduce_dtype = reduce;
    const TinyRun cpu = train_tiny(llama_, 1), cuda = train_tiny(on_cuda(llama_), 1);
    expect_close(cuda.losses, cpu.losses, 2e-2, fmt::format("{} {}", name(param), name(reduce)));
  }
}

TEST_F(TrainingOnCuda, WithoutShardingTheBitsAreTheSame) {
  llama_.steps = 3;
  const TinyRun sharded = train_tiny(on_cuda(llama_), 1);
  llama_.plan.fully_shard = false;
  const TinyRun plain = train_tiny(on_cuda(llama_), 1);
  EXPECT_EQ(plain.losses, sharded.losses);
  EXPECT_EQ(plain.final, sharded.final);
}

// Distributed tensors on a device, as long as the mesh has one rank.
TEST_F(TrainingOnCuda, AMeshOfOneRankGivesTheLossesOfNone) {
  for (TrainConfig config : {on_cuda(gpt_), on_cuda(llama_)}) {
    const TinyRun plain = train_tiny(config, 1);
    config.plan.mesh = "dp=1,tp=1";
    for (const bool compile : {false, true}) {
      config.plan.compiled = compile;
      const TinyRun meshed = train_tiny(config, 1);
      EXPECT_EQ(meshed.initial, plain.initial);
      expect_close(meshed.losses, plain.losses, 1e-6, config.model.style);
      expect_close(meshed.norms, plain.norms, 1e-5, config.model.style);
    }
  }
}

// The order of everything that may happen in any order is another one.
TEST_F(TrainingOnCuda, RunsRepeatBitForBitWhateverTheOrder) {
  gpt_.steps = 3;
  const TinyRun first = train_tiny(on_cuda(gpt_), 1);
  cuda::emulated::set_seed(77);
  const TinyRun second = train_tiny(on_cuda(gpt_), 1);
  EXPECT_EQ(first.losses, second.losses);
  EXPECT_EQ(first.final, second.final);
}

TEST_F(TrainingOnCuda, F181_CompiledStepsAreBitwiseTheEagerOnes) {
  gpt_.model.dropout = 0.2;
  llama_.plan.param_dtype = DType::bf16;
  for (TrainConfig config : {gpt_, llama_}) {
    config = on_cuda(config);
    const TinyRun eager = train_tiny(config, 1);
    config.plan.compiled = true;
    const TinyRun compiled = train_tiny(config, 1);
    EXPECT_EQ(compiled.losses, eager.losses) << config.model.style;
    EXPECT_EQ(compiled.norms, eager.norms) << config.model.style;
    EXPECT_EQ(compiled.final, eager.final) << config.model.style;
  }
}

TEST_F(TrainingOnCuda, F169_AResumedRunIsBitwiseTheUninterruptedOne) {
  const TempDir checkpoint;
  TrainConfig config = on_cuda(gpt_);
  config.save = checkpoint.path();
  const TinyRun whole = train_tiny(config, 1);
  config.save_every = 2;
  config.steps = 2;
  config.overwrite = true;
  const TinyRun head = train_tiny(config, 1);
  config.steps = 5;
  config.overwrite = false;
  config.resume = checkpoint.path();
  const TinyRun tail = train_tiny(config, 1);
  EXPECT_EQ(tail.initial, head.final);
  EXPECT_EQ(tail.losses, std::vector<double>(whole.losses.begin() + 2, whole.losses.end()));
  EXPECT_EQ(tail.final, whole.final);

  config.plan.device = Device::cpu();  // the same state, other kernels
  config.resume = checkpoint.path() + "/step-000002";
  config.save.clear();
  config.save_every = 0;
  const TinyRun elsewhere = train_tiny(config, 1);
  EXPECT_EQ(elsewhere.initial, head.final);
  for (std::size_t i = 0; i < tail.losses.size(); ++i) EXPECT_NEAR(elsewhere.losses[i], tail.losses[i], 1e-4);
}

// All memory is allocated after three steps, and between two losses the host never waits for the device.
TEST_F(TrainingOnCuda, F179_F180_ASteadyStepWaitsForNothingAndAllocatesNothing) {
  llama_.plan.param_dtype = DType::bf16;
  for (TrainConfig config : {gpt_, llama_}) {
    for (const bool compiled : {false, true}) {
      config = on_cuda(config);
      config.plan.compiled = compiled;
      run_ranks(1, [&](const Group& group) {
        Trainer trainer(config, group);
        std::int64_t step = 0;
        for (; step < 4; ++step) trainer.train_step(step);
        device().synchronize();
        cuda::emulated::reset_counters();
        for (; step < 7; ++step) trainer.train_step(step);
        const cuda::emulated::Counters seen = cuda::emulated::counters();
        EXPECT_EQ(seen.host_syncs, 0) << config.model.style << ", compiled " << compiled;
        EXPECT_EQ(seen.allocations + seen.frees, 0) << config.model.style << ", compiled " << compiled;
        EXPECT_EQ(seen.pinned_allocations, 0) << config.model.style << ", compiled " << compiled;
        EXPECT_EQ(seen.graph_launches, compiled ? 3 : 0) << config.model.style;
        device().synchronize();
      });
    }
  }
}

TEST_F(TrainingOnCuda, EveryStepIsReportedOnceAndInOrder) {
  gpt_.steps = 9;
  gpt_.eval_every = 4;
  run_ranks(1, [&](const Group& group) {
    Trainer trainer(on_cuda(gpt_), group);
    std::vector<std::int64_t> steps, evaluated;
    trainer.run([&](const StepMetrics& metrics) {
      steps.push_back(metrics.step);
      if (metrics.val_loss) evaluated.push_back(metrics.step);
      EXPECT_GT(metrics.loss, 0);
      EXPECT_GT(metrics.step_seconds, 0);
      EXPECT_GT(metrics.memory_bytes[static_cast<std::size_t>(MemoryCategory::optimizer)], 0);
    });
    EXPECT_EQ(steps, (std::vector<std::int64_t>{1, 2, 3, 4, 5, 6, 7, 8, 9}));
    EXPECT_EQ(evaluated, (std::vector<std::int64_t>{4, 8, 9}));
  });
}

// Parameters count on the GPU, and nothing of the model is left on the host.
TEST_F(TrainingOnCuda, MemoryIsThatOfTheDevice) {
  run_ranks(1, [&](const Group& group) {
    Trainer trainer(on_cuda(llama_), group);
    trainer.train_step(0);
    std::int64_t bytes = 0;
    for (const nn::Parameter* p : trainer.model().parameters()) bytes += 4 * p->numel();
    const Accounting& memory = device().allocator().accounting();
    EXPECT_GE(memory.current(MemoryCategory::parameters), bytes);
    EXPECT_EQ(memory.current(MemoryCategory::optimizer), 2 * bytes);
    const Accounting& host = RankContext::current().allocator().accounting();
    EXPECT_EQ(host.current(MemoryCategory::parameters), 0);
    EXPECT_EQ(host.current(MemoryCategory::optimizer), 0);
    EXPECT_EQ(host.current(MemoryCategory::gradients), 0);
  });
}

TEST_F(TrainingOnCuda, StepsBeforeAnErrorAreReported) {
  const TinyRun whole = train_tiny(on_cuda(gpt_), 1);
  run_ranks(1, [&](const Group& group) {
    TrainConfig config = on_cuda(gpt_);
    Trainer trainer(config, group);
    // The run is left in its third step, by the device's lack of memory.
    std::vector<double> losses;
    Allocator& memory = device().allocator();
    trainer.model().add_hook(std::make_shared<LimitAtForward>(memory, 3));
    expect_error([&] { trainer.run([&](const StepMetrics& m) { losses.push_back(m.loss); }); },
                 {"out of memory", "owners", "parameters"});
    memory.set_limit(0);
    EXPECT_EQ(losses, std::vector<double>(whole.losses.begin(), whole.losses.begin() + 2));
  });
}

}  // namespace
}  // namespace sherd::testing
