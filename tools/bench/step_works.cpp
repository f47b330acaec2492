// What a child does with a model that is trained: a row {plan, model} from flags (training.h), and requests.
#include <algorithm>
#include <map>
#include <sstream>

#include "compile/ir/analysis/seconds.h"
#include "compile/run/measure_prices.h"
#include "nn/checkpoint/format/safetensors.h"
#include "nn/parallel/shard/wrap/fully_shard.h"
#include "runtime/comm/board/exposed.h"
#include "runtime/comm/group/agree.h"
#include "runtime/comm/group/host_group.h"
#include "runtime/comm/job/world.h"
#include "runtime/cpu/parallel.h"
#include "runtime/exec/context.h"
#include "runtime/exec/trace.h"
#include "runtime/op/core/host_reads.h"
#include "runtime/op/rows/ops.h"
#include "runtime/tensor/indices.h"
#include "tools/bench/profiler_range.h"
#include "tools/bench/training.h"
#include "tools/table/table.h"
#include "tools/train/ghost_training.h"
#include "tools/train/run.h"
#include "tools/train/trainer.h"

namespace sherd::bench {

namespace {

using nlohmann::json;
using table::by_category;

constexpr comm::CommOp kCollectives[] = {comm::CommOp::all_gather, comm::CommOp::reduce_scatter,
                                         comm::CommOp::all_reduce, comm::CommOp::all_to_all};

/// What steps of a rank take, of which rank 0 sees what all ranks take.
struct StepTimes {
  std::vector<double> seconds{}, exposed{}, skew{}, computing{};
  CommCounts moved{};  ///< in all steps

  template <class Do>
  void add(ProcessGroup& group, const Do& step) {
    group.host().barrier();
    const CommTimes times_before = comm_times(group);
    const CommCounts before = counts_with_subgroups(group);
    seconds.push_back(seconds_of(step));
    const CommTimes times = comm_times(group) - times_before;
    exposed.push_back(times.exposed);
    skew.push_back(times.skew);
    computing.push_back(seconds.back() - times.exposed);
    moved += counts_with_subgroups(group);
    moved -= before;
  }
};

// `step [--profile true]`: training steps on one rank or, under `sherd run`, on several: sharded by a strategy, each
// with its batch, or tensor parallel, on one batch. A request is a number of steps. The answer holds of each step its
// seconds, exposed_seconds of them that it waited for communication, skew_seconds of those until the last rank had
// come, and computing_seconds that it did not wait; comm_bytes per step of gathers and reductions, sum_bytes of
// all-reduces; the last loss; growth_bytes (peak of resident memory over the program's start); and, per category of the
// accounting, what is held between steps, the peak of each, and what was held at the moment of the total's peak. On a
// GPU steps are queued together and waited for once, so the sample is their mean; device_peak_bytes is the peak of its
// memory, and a request may be "eager N" for steps that are not replayed, or "ops" for one eager step that waits for
// each op: "ops" of the answer holds [name, inputs, calls, seconds of all calls], the longest first. With --profile a
// profiler that waits records the steps that are asked for, and only those.
class StepRun {
 public:
  StepRun(const BenchRow& row, bool profile, std::shared_ptr<ProcessGroup> group)
      : device_(row.plan.device),
        profile_(profile),
        group_(std::move(group)),
        step_(train_step(row.model(), row.plan, group_, row.link)),
        batch_(random_batch(row, row.tensor_parallel ? 0 : group_->rank())) {
    for (int i = 0; i < 4; ++i) (void)run_step().item<double>();  // eager, recording, replays: pools and caches fill
  }

  json answer(const std::string& request) {
    const bool on_device = device_ != Device::cpu(), eager = request.starts_with(kEager) && on_device;
    if (request == "ops" && on_device) return answer_of_ops();
    const std::int64_t steps = asked(request.substr(eager ? kEager.size() : 0), "STEPS").numbers[0];
    Accounting& memory = RankContext::current().allocator(device_).accounting();
    memory.reset_peaks();
    if (on_device) return answer_of_device(steps, eager, memory);
    StepTimes times;
    double loss = 0;
    for (std::int64_t i = 0; i < steps; ++i) times.add(*group_, [&] { loss = run_step().item<double>(); });
    const auto per_step = [&](std::int64_t bytes) { return static_cast<double>(bytes) / static_cast<double>(steps); };
    return {{"seconds", times.seconds},
            {"exposed_seconds", times.exposed},
            {"skew_seconds", times.skew},
            {"computing_seconds", times.computing},
            {"comm_bytes", per_step(times.moved.all_gather.bytes + times.moved.reduce_scatter.bytes)},
            {"sum_bytes", per_step(times.moved.all_reduce.bytes)},
            {"loss", loss},
            {"growth_bytes", process_memory_bytes("VmHWM") - start_bytes_},
            {"held_bytes", by_category(memory.current())},
            {"peak_bytes", by_category(memory.peak())},
            {"peak_total", memory.total_peak()},
            {"bytes_at_peak", by_category(memory.at_peak())}};
  }

 private:
  Tensor run_step() { return step_.update(batch_.tokens, batch_.targets).loss; }
  Tensor run_eager_step() { return step_.update_eagerly(batch_.tokens, batch_.targets).loss; }
  json answer_of_device(std::int64_t steps, bool eager, Accounting& memory) {
    DeviceContext& device = RankContext::current().device(device_);
    std::optional<ProfilerRange> profiled;
    if (profile_) profiled.emplace();
    Tensor loss;
    StepTimes times;
    times.add(*group_, [&] {
      for (std::int64_t i = 0; i < steps; ++i) loss = eager ? run_eager_step() : run_step();
      device.synchronize();
    });
    const auto per_step = [&](double of_all) { return of_all / static_cast<double>(steps); };
    json answer = {
        {"seconds", {per_step(times.seconds[0])}},
        {"exposed_seconds", {per_step(times.exposed[0])}},
        {"skew_seconds", {per_step(times.skew[0])}},
        {"computing_seconds", {per_step(times.computing[0])}},
        {"comm_bytes", per_step(static_cast<double>(times.moved.all_gather.bytes + times.moved.reduce_scatter.bytes))},
        {"sum_bytes", per_step(static_cast<double>(times.moved.all_reduce.bytes))},
        {"loss", loss.item<double>()},
        {"how", eager ? "eager" : step_.how()},
        {"device_peak_bytes", memory.total_peak()},
        {"peak_bytes", table::by_category(memory.peak())},
        {"bytes_at_peak", table::by_category(memory.at_peak())}};
    if (profiled && !profiled->why_not().empty()) answer["not_profiled"] = profiled->why_not();
    return answer;
  }

  // What each op takes on the device: the kernels of one call at a time.
  json answer_of_ops() {
    Trace trace;
    trace.waits_for_devices = true;
    (void)run_eager_step().item<double>();  // no eager step may have filled the pools yet
    const double seconds = seconds_of([&] {
      const Trace::Recording recording(trace);
      (void)run_eager_step().item<double>();
    });
    struct Sum {
      std::int64_t calls = 0;
      double seconds = 0;
    };
    std::map<std::pair<std::string, std::string>, Sum> sums;
    for (const Span& span : trace.spans()) {
      if (span.kind != SpanKind::op) continue;
      Sum& sum = sums[{std::string(span.name), span.detail ? *span.detail : ""}];
      ++sum.calls;
      sum.seconds += static_cast<double>(span.end - span.start) * 1e-9;
    }
    std::vector<json> ops;
    for (const auto& [op, sum] : sums) ops.push_back({op.first, op.second, sum.calls, sum.seconds});
    std::ranges::sort(ops, std::greater(), [](const json& op) { return op[3].get<double>(); });
    return {{"seconds", {seconds}}, {"how", "eager, waiting for each op"}, {"ops", ops}};
  }

  static constexpr std::string_view kEager = "eager ";
  const Device device_;
  const bool profile_;
  const std::int64_t start_bytes_ = process_memory_bytes("VmRSS");
  std::shared_ptr<ProcessGroup> group_;
  TrainStep step_;
  BenchRow::Batch batch_;
};

// What rank 0 holds at most in a captured step with this recomputation, to the byte.
MemoryBudget peak_of(const BenchRow& row, const std::string& recompute, int ranks) {
  nn::TrainingPlan plan = row.plan;
  plan.recompute = recompute;
  const BenchModel model = row.model();
  const PredictedPeak predicted = predict_peak(train_config(model, plan, ranks), 0, ranks, model.vocabulary,
                                               {.evaluates = false, .step = {.metrics = false}});
  return std::to_string(predicted.bytes);
}

Ready begin_step(std::span<const std::string_view> args) {
  bool profile = false;
  std::string budget_of;
  auto [row, group] = take_row_of_ranks(args, 2, {}, {{"profile", &profile}, {"budget_of", &budget_of}});
  if (row.tensor_parallel) row.plan.mesh = fmt::format("tp={}", group->size());
  if (!budget_of.empty()) row.plan.memory_budget = peak_of(row, budget_of, group->size());
  return ready<StepRun>(greeting_of(row), group, row, profile, group);
}

// `train CONFIG.toml [flags]`: a training run as `sherd train` makes it, told apart by rank. A request is a number of
// steps; settling ones come before the first answer. The answer holds seconds of each step, as rank 0 sees them; calls
// and bytes of each kind of collective in a step; the last loss; and of each rank, in `ranks`, exposed_seconds and
// skew_seconds of each step, and bytes of the accounting: peak_bytes of each category over all steps so far,
// total_peak_bytes since the program's start and bytes_at_peak then, held_bytes between steps; within a memory budget
// `predicted`, with those of an update that the rank has predicted, and its seconds.
class TrainRun {
 public:
  TrainRun(const TrainConfig& config, std::shared_ptr<ProcessGroup> group)
      : group_(std::move(group)),
        trainer_(config, group_),
        memory_(RankContext::current().allocator(trainer_.opened().device).accounting()) {
    note_peak();
    for (int i = 0; i < 4; ++i) step();  // orders are recorded, then a captured step, then pools and caches fill
  }

  json answer(const std::string& request) {
    StepTimes times;
    for (std::int64_t left = asked(request, "STEPS").numbers[0]; left > 0; --left) {
      times.moved = {};
      times.add(*group_, [&] { step(); });
    }
    json calls, bytes;
    for (const comm::CommOp op : kCollectives) {
      calls[std::string(name(op))] = times.moved.of(op).calls;
      bytes[std::string(name(op))] = times.moved.of(op).bytes;
    }
    json own = {{"exposed_seconds", times.exposed},       {"skew_seconds", times.skew},
                {"peak_bytes", by_category(peak_)},       {"total_peak_bytes", total_peak_},
                {"bytes_at_peak", by_category(at_peak_)}, {"held_bytes", by_category(memory_.current())}};
    if (const auto predicted = trainer_.opened().step->predicted())
      own["predicted"] = {{"peak_bytes", by_category(predicted->bytes)},
                          {"total_peak_bytes", predicted->peak},
                          {"bytes_at_peak", by_category(predicted->at_peak)},
                          {"seconds", predicted->seconds}};
    json ranks;
    for (const std::string& text : gather_text(*group_, own.dump())) ranks.push_back(json::parse(text));
    return {{"seconds", times.seconds}, {"calls", calls}, {"bytes", bytes}, {"loss", loss_}, {"ranks", ranks}};
  }

 private:
  void step() {
    memory_.reset_peaks();
    loss_ = trainer_.train_step(next_++).loss.item<double>();
    for (const std::size_t c : up_to(kNumCategories)) peak_[c] = std::max(peak_[c], memory_.peak()[c]);
    note_peak();
  }
  void note_peak() {
    if (memory_.total_peak() <= total_peak_) return;
    total_peak_ = memory_.total_peak();
    at_peak_ = memory_.at_peak();
  }

  std::shared_ptr<ProcessGroup> group_;
  Trainer trainer_;
  Accounting& memory_;
  CategoryBytes peak_{}, at_peak_{};
  std::int64_t total_peak_ = 0, next_ = 0;
  double loss_ = 0;
};

Ready begin_train(std::span<const std::string_view> args) {
  std::optional<TrainConfig> config = load_train_config(args);
  check(config.has_value(), "train: a child has no help");
  const std::shared_ptr<ProcessGroup> group = config->threads == 0 ? pinned_group(2) : world_group();
  if (config->threads == 0) config->threads = 1;
  return ready<TrainRun>(sherd_greeting(), group, *config, group);
}

// `ghost`: ranks of a large job, one after the other, each a ghost on this thread. A request names them: "0 63 511".
// The answer holds first_seconds, of building a rank with its first step, the slowest's; seconds of each further step
// of all of them; growth_bytes, the peak of resident memory over the program's start; and what the last rank is
// predicted to hold: held_bytes between steps, bytes_at_peak of a settled step.
Ready begin_ghost(std::span<const std::string_view> args) {
  const BenchRow row = take_row(args, {.name = "tiny_llama", .plan = {.mesh = "dp=2"}, .steps = 5});
  const std::int64_t start_bytes = process_memory_bytes("VmRSS");
  return {greeting_of(row), [=](const std::string& request) {
            std::vector<double> seconds;
            double first = 0;
            json result;
            std::istringstream words(request);
            for (int rank = 0; words >> rank;) {
              std::optional<GhostRank> ghost;
              first = std::max(first, seconds_of([&] {
                                 ghost.emplace(row.model(), row.plan.mesh.text(), rank);
                                 ghost->step();
                               }));
              Accounting& memory = RankContext::current().allocator().accounting();
              for (std::int64_t i = 0; i < row.steps; ++i) {
                memory.reset_peaks();
                seconds.push_back(seconds_of([&] { ghost->step(); }));
              }
              result["held_bytes"] = by_category(memory.current());
              result["bytes_at_peak"] = by_category(memory.at_peak());
              result["total_peak_bytes"] = memory.total_peak();
            }
            check(!seconds.empty(), "ghost: \"{}\" names no rank", request);
            result["seconds"] = seconds;
            result["first_seconds"] = first;
            result["growth_bytes"] = process_memory_bytes("VmHWM") - start_bytes;
            return result;
          }};
}

// `loss --folder DIR`: losses from a start that others can read. DIR/start.safetensors gets the model's initial
// parameters under our names and "batches", i32 [steps, B, T + 1]: batch i is what step i trains on. A request (any
// line) trains them all, the answer holds the mean seconds of a step and "losses", one of each step.
//
// A token follows from the one before, 5 x + 17 plus one of four at random, so that there is something to learn: the
// loss goes from ln(vocabulary) towards ln 4.
constexpr std::int64_t kMaxSymbols = 256;  // of the vocabulary, those in the text

// i32 [steps, B, T + 1].
std::vector<std::int32_t> made_up_batches(const BenchModel& m, std::int64_t steps) {
  const std::int64_t rows = steps * m.batch, columns = m.sequence + 1, symbols = std::min(m.vocabulary, kMaxSymbols);
  const std::vector<float> drawn =
      random_uniform({rows, columns}, random_key(3, "batches", "data", 0), 0, 4).to_vector<float>();
  std::vector<std::int32_t> text(drawn.size());
  for (const std::size_t i : indices(text)) {
    const bool starts = static_cast<std::int64_t>(i) % columns == 0;
    const std::int64_t before = starts ? static_cast<std::int64_t>(i) / columns : text[i - 1];
    text[i] = static_cast<std::int32_t>((5 * before + 17 + static_cast<std::int64_t>(drawn[i])) % symbols);
  }
  return text;
}

// The same seed gives the same bits as in the model that is trained, which may be sharded and on a device.
void write_start(const std::string& path, const BenchModel& m, const std::vector<std::int32_t>& batches,
                 std::int64_t steps) {
  const auto model = make_bench_model(m);
  model->materialize(nn::Seed{1});
  std::vector<ckpt::TensorBytes> tensors;
  for (const auto& [name, parameter] : model->named_parameters()) {
    const Tensor& value = parameter->value();
    const std::span bytes(static_cast<const std::byte*>(value.raw()), static_cast<std::size_t>(value.bytes()));
    tensors.push_back({{name, DType::f32, parameter->shape()}, bytes});
  }
  tensors.push_back({{"batches", DType::i32, {steps, m.batch, m.sequence + 1}}, std::as_bytes(std::span(batches))});
  ckpt::write_safetensors(path, tensors);
}

Ready begin_loss(std::span<const std::string_view> args) {
  std::string folder;
  const BenchRow row = take_row(args, {.steps = 100}, {{"folder", &folder}});
  check(row.steps >= 1, "--steps must be positive, got {}", row.steps);
  check(!folder.empty(), "--folder is missing");
  const BenchModel m = row.model();
  const std::vector<std::int32_t> batches = made_up_batches(m, row.steps);
  write_start(folder + "/start.safetensors", m, batches, row.steps);
  const auto step =
      std::make_shared<TrainStep>(train_config(m, row.plan, 1), nn::JobMesh(row.plan.mesh, make_single_group()),
                                  m.vocabulary, TrainStep::Options{.metrics = false});
  const Tensor all = to(Tensor::from<std::int32_t>(batches, {row.steps, m.batch, m.sequence + 1}), row.plan.device);
  return {greeting_of(row), [=](const std::string&) -> json {
            std::vector<double> losses;
            HostReads reads;
            const double seconds = seconds_of([&] {
              for (const std::int64_t i : up_to(row.steps)) {
                const Tensor text = reshape(narrow(all, 0, i, 1), {m.batch, m.sequence + 1});
                const Tensor loss =
                    step->update(contiguous(narrow(text, 1, 0, m.sequence)), contiguous(narrow(text, 1, 1, m.sequence)))
                        .loss;
                reads.push({loss}, [&](std::span<const double> value) { losses.push_back(value[0]); });
              }
              reads.finish();
            });
            return {{"seconds", {seconds / static_cast<double>(row.steps)}}, {"losses", losses}};
          }};
}

// `predicted [--link ...]`: a captured training step with clipping and AdamW, on several ranks fully sharded, each with
// its batch. A request is a number of steps. The answer holds seconds of each replay; predicted_seconds, from prices
// measured before each request, and what of that is predicted to be exposed; measuring_seconds.
class PredictedRun {
 public:
  PredictedRun(const BenchRow& row, std::shared_ptr<ProcessGroup> group)
      : group_(std::move(group)), loop_{.model = make_bench_model(row.model()), .clips = true} {
    if (group_->size() > 1) {
      const nn::JobMesh mesh("", group_);
      row.link.shape(mesh);
      for (nn::Module* block : loop_.model->blocks()) nn::fully_shard(*block, mesh.data());
      nn::fully_shard(*loop_.model, mesh.data());
    }
    loop_.draw();
    const BenchRow::Batch batch = random_batch(row, group_->rank());
    arguments_ = {batch.tokens, batch.targets};
    while (step_.mode() != CompiledStep::Mode::replay) step_(arguments_);
  }

  json answer(const std::string& request) {
    const ir::Program& program = step_.graph()->program;
    Prices prices;
    const double measuring = seconds_of([&] { prices = measure_prices(program, {.group = group_}); });
    const ir::StepSeconds predicted = step_seconds(program, prices);
    StepTimes times;
    step_(arguments_);
    for (std::int64_t left = asked(request, "STEPS").numbers[0]; left > 0; --left)
      times.add(*group_, [&] { step_(arguments_); });
    return {{"seconds", times.seconds},
            {"exposed_seconds", times.exposed},
            {"predicted_seconds", predicted.seconds},
            {"predicted_exposed_seconds", predicted.exposed},
            {"measuring_seconds", measuring},
            {"nodes", program.nodes.size()}};
  }

 private:
  std::shared_ptr<ProcessGroup> group_;
  PlainLoop loop_;
  std::vector<Tensor> arguments_;
  CompiledStep step_{[this](std::span<const Tensor> in) { return std::vector{loop_.step(in)}; }};
};

Ready begin_predicted(std::span<const std::string_view> args) {
  const auto [row, group] = take_row_of_ranks(args, 1, {.name = "mini"});
  check(row.plan.device == Device::cpu(), "predicted: prices of {} are not measured", to_string(row.plan.device));
  const auto run = std::make_shared<PredictedRun>(row, group);
  return {greeting_of(row), [run](const std::string& request) { return run->answer(request); }, group};
}

constexpr Works::value_type kStepWorks[] = {{"step", begin_step},
                                            {"train", begin_train},
                                            {"ghost", begin_ghost},
                                            {"loss", begin_loss},
                                            {"predicted", begin_predicted}};

}  // namespace

Works step_works() { return kStepWorks; }

}  // namespace sherd::bench
