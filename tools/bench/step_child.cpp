// `--child step`: training steps of a benchmark model on one rank or, under `sherd run`, on several: fully sharded,
// each with its batch, or tensor parallel, on one batch. A request is a number of steps. The answer holds of each step
// its seconds, exposed_seconds of them that it waited for communication and computing_seconds that it did not;
// comm_bytes per step; the last loss; growth_bytes (peak of resident memory over the program's start); and, per
// category of the accounting, what is held between steps, the peak of each, and what was held at the moment of the
// total's peak. On a GPU steps are queued together and waited for once, so the sample is their mean; device_peak_bytes
// is the peak of its memory.
#include <chrono>
#include <fstream>
#include <optional>
#include <tuple>

#include "compile/compile.h"
#include "nn/optim/adamw.h"
#include "nn/parallel/fully_shard.h"
#include "nn/parallel/shard_group.h"
#include "nn/parallel/tensor_parallel.h"
#include "runtime/autograd/autograd.h"
#include "runtime/comm/exposed.h"
#include "runtime/comm/world.h"
#include "runtime/cpu/parallel.h"
#include "runtime/exec/context.h"
#include "runtime/op/ops.h"
#include "tools/bench/child.h"
#include "tools/bench/models.h"
#include "tools/config.h"

namespace sherd::bench {

namespace {

struct StepFlags {
  std::string model = "tiny", dtype = "f32";
  std::int64_t threads = 1;
  std::int64_t batch = 0, tokens = 0;  ///< of each rank; 0: the model's
  bool captured = true, prefetch = true, tensor_parallel = false;
  std::string link, device = "cpu";
};

// "VmRSS" or "VmHWM" of /proc/self/status, in bytes.
std::int64_t process_memory_bytes(std::string_view field) {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with(field)) return std::stoll(line.substr(field.size() + 1)) * 1024;
  return 0;
}

nlohmann::json by_category(const CategoryBytes& bytes) {
  nlohmann::json result;
  for (int c = 0; c < kNumCategories; ++c)
    result[std::string(name(static_cast<MemoryCategory>(c)))] = bytes[static_cast<std::size_t>(c)];
  return result;
}

// One batch of random tokens, i32 [B, T], other ones on every rank.
std::pair<Tensor, Tensor> random_batch(const BenchModel& m, const StepFlags& flags, int rank) {
  const std::int64_t batch = flags.batch ? flags.batch : m.batch, tokens = flags.tokens ? flags.tokens : m.tokens;
  const std::uint64_t key = random_key(2, "tokens", "data", static_cast<std::uint64_t>(rank));
  const Tensor text = cast(random_uniform({batch, tokens + 1}, key, 0, static_cast<double>(m.vocabulary)), DType::i32);
  return {contiguous(narrow(text, 1, 0, tokens)), contiguous(narrow(text, 1, 1, tokens))};
}

class StepRun {
 public:
  StepRun(const StepFlags& flags, std::shared_ptr<ProcessGroup> group)
      : device_(flags.device == "cpu" ? Device::cpu() : Device::cuda(0)),
        start_bytes_(process_memory_bytes("VmRSS")),
        group_(std::move(group)) {
    const BenchModel& m = bench_model(flags.model);
    check(flags.dtype == "f32" || flags.dtype == "bf16", "--dtype is f32 or bf16, not {}", flags.dtype);
    check(flags.device == "cpu" || flags.device == "cuda", "--device is cpu or cuda, not {}", flags.device);
    set_threads(static_cast<int>(flags.threads));
    model_ = make_bench_model(m);
    if (flags.tensor_parallel) nn::parallelize(*model_, mesh_.emplace(group_, "tp"), bench_plan(m));
    else if (group_->size() > 1 || flags.dtype == "bf16") shard(flags);
    model_->materialize(nn::Seed{1}, device_);
    optimizer_ = std::make_unique<nn::AdamW>(model_->parameters(),
                                             nn::AdamWOptions{.lr = 3e-4, .beta2 = 0.95, .weight_decay = 0.1});
    std::tie(tokens_, targets_) = random_batch(m, flags, flags.tensor_parallel ? 0 : group_->rank());
    tokens_ = to(tokens_, device_);
    targets_ = to(targets_, device_);
    if (flags.captured)
      captured_ = std::make_unique<CompiledStep>([this](std::span<const Tensor> in) { return step(in); },
                                                 CompileOptions{.group = group_});
    for (int i = 0; i < 4; ++i) (void)run_step().item<double>();  // eager, recording, replays: pools and caches fill
  }

  nlohmann::json answer(const std::string& request) {
    const int steps = std::atoi(request.c_str());
    check(steps >= 1, "step: \"{}\" is no number of steps", request);
    Accounting& memory = RankContext::current().allocator(device_).accounting();
    memory.reset_peaks();
    if (device_ != Device::cpu()) return answer_of_device(steps, memory);
    std::vector<double> seconds, exposed, computing;
    double loss = 0;
    const CommCounts before = group_->counts();
    for (int i = 0; i < steps; ++i) {
      group_->barrier();
      const CommTimes times_before = comm_times(*group_);
      const auto start = std::chrono::steady_clock::now();
      loss = run_step().item<double>();
      seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
      exposed.push_back((comm_times(*group_) - times_before).exposed);
      computing.push_back(seconds.back() - exposed.back());
    }
    const CommCounts after = group_->counts();
    const std::int64_t bytes =
        after.all_gather.bytes - before.all_gather.bytes + after.reduce_scatter.bytes - before.reduce_scatter.bytes;
    return {{"seconds", seconds},
            {"exposed_seconds", exposed},
            {"computing_seconds", computing},
            {"comm_bytes", static_cast<double>(bytes) / steps},
            {"loss", loss},
            {"growth_bytes", process_memory_bytes("VmHWM") - start_bytes_},
            {"held_bytes", by_category(memory.current())},
            {"peak_bytes", by_category(memory.peak())},
            {"bytes_at_peak", by_category(memory.at_peak())}};
  }

 private:
  // On one rank too: the policy of bf16 is fully_shard's.
  void shard(const StepFlags& flags) {
    const DeviceMesh mesh(group_, "dp");
    nn::FullyShardOptions options{.prefetch = flags.prefetch};
    if (flags.dtype == "bf16") options.mp_policy = {.param_dtype = DType::bf16, .reduce_dtype = DType::f32};
    for (nn::Module* block : model_->blocks()) nn::fully_shard(*block, mesh, options);
    nn::fully_shard(*model_, mesh, options);
  }
  std::vector<Tensor> step(std::span<const Tensor> in) {
    Tensor loss = (*model_)(in[0], in[1]);
    backward(loss);
    optimizer_->step_and_clear();
    return {loss.local().detach()};  // of a tensor parallel one every rank has the whole
  }
  Tensor run_step() {
    const Tensor in[] = {tokens_, targets_};
    return (captured_ ? (*captured_)(in) : step(in))[0];
  }
  nlohmann::json answer_of_device(int steps, Accounting& memory) {
    const auto start = std::chrono::steady_clock::now();
    Tensor loss;
    for (int i = 0; i < steps; ++i) loss = run_step();
    RankContext::current().device(device_).synchronize();
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    return {{"seconds", {seconds / steps}},
            {"loss", loss.item<double>()},
            {"how", captured_ ? captured_->why() : "eager"},
            {"device_peak_bytes", memory.total_peak()},
            {"peak_bytes", by_category(memory.peak())},
            {"bytes_at_peak", by_category(memory.at_peak())}};
  }

  const Device device_;
  std::int64_t start_bytes_;
  std::shared_ptr<ProcessGroup> group_;
  std::optional<DeviceMesh> mesh_;
  std::unique_ptr<nn::LanguageModel> model_;
  std::unique_ptr<nn::AdamW> optimizer_;
  std::unique_ptr<CompiledStep> captured_;
  Tensor tokens_, targets_;
};

}  // namespace

int run_step_child(std::span<const std::string_view> args) {
  StepFlags flags;
  ConfigTable table;
  table.add("model", &flags.model, "one of models.cpp");
  table.add("dtype", &flags.dtype, "f32, or bf16 by mixed precision");
  table.add("device", &flags.device, "cpu, or cuda for the first GPU");
  table.add("threads", &flags.threads, "of each rank");
  table.add("batch", &flags.batch, "sequences of each rank; 0: the model's");
  table.add("tokens", &flags.tokens, "of each sequence; 0: the model's");
  table.add("link", &flags.link, "BYTES_PER_S,SECONDS: shapes the link between the ranks");
  table.add("prefetch", &flags.prefetch, "gather the next group while one computes");
  table.add("tensor_parallel", &flags.tensor_parallel, "ranks share one batch and cut the model's matrices");
  table.add("captured", &flags.captured, "replay a recording");
  apply_flags(table, parse_command_line(table, args));
  const std::shared_ptr<ProcessGroup> group = world_group();
  TrainConfig config;
  config.link = flags.link;
  if (const std::optional<LinkShape> link = link_shape(config)) group->shape_link(*link);
  if (group->size() > 1) pin_to_cpu(group->rank());
  StepRun run(flags, group);
  serve_ranks(*group, {{"peer", "sherd"}}, [&](const std::string& request) { return run.answer(request); });
  return 0;
}

}  // namespace sherd::bench
