#include "tests/compile/recorded_step.h"

#include <cstring>
#include <filesystem>

#include "compile/capture/capture.h"
#include "compile/ir/analysis/seconds.h"
#include "compile/ir/homes.h"
#include "compile/passes/pass.h"
#include "compile/run/fit.h"
#include "compile/run/replay.h"
#include "nn/models/gpt.h"
#include "nn/models/llama.h"
#include "nn/optim/adamw.h"
#include "nn/optim/clip.h"
#include "nn/plan/apply.h"
#include "runtime/autograd/autograd.h"
#include "runtime/autograd/slot.h"
#include "runtime/comm/group/host_group.h"
#include "runtime/op/copy/offload_homes.h"
#include "tests/parallel/two_dim_net.h"
#include "tests/support/ranks.h"

namespace sherd::testing {

namespace {

using Group = std::shared_ptr<ProcessGroup>;
using Bits = std::vector<std::byte>;

Bits bits_of(const Tensor& tensor) {
  const Tensor dense = contiguous(tensor.local().detach());
  Bits bits(static_cast<std::size_t>(dense.bytes()));
  if (!bits.empty()) std::memcpy(bits.data(), dense.raw(), bits.size());
  return bits;
}

std::vector<Bits> bits_of_slots() {
  const GradMode off(false);
  std::vector<Bits> state;
  for (const Slot* slot : living_slots()) state.push_back(slot->has_value() ? bits_of(slot->value()) : Bits());
  return state;
}

std::vector<Bits> bits_of_gradients() {
  std::vector<Bits> gradients;
  for (const Slot* slot : living_slots()) gradients.push_back(slot->grad().defined() ? bits_of(slot->grad()) : Bits());
  return gradients;
}

std::vector<Bits> bits_of_all(std::span<const Tensor> tensors) {
  std::vector<Bits> all;
  for (const Tensor& tensor : tensors) all.push_back(tensor.defined() ? bits_of(tensor) : Bits());
  return all;
}

void put(const Bits& bits, const Tensor& local) {
  ASSERT_TRUE(local.is_contiguous());
  ASSERT_EQ(static_cast<std::size_t>(local.bytes()), bits.size());
  if (bits.empty()) return;
  std::memcpy(local.storage()->write() + local.offset() * byte_size(local.dtype()), bits.data(), bits.size());
  local.storage()->bump_version();
}

struct Training {
  std::unique_ptr<nn::AdamW> optimizer;
  std::vector<Tensor> finish(const Tensor& loss) const {
    backward(loss);
    return update(loss);
  }
  std::vector<Tensor> update(const Tensor& loss) const {
    const Tensor norm = nn::clip_grad_norm(*optimizer, 0.05);
    optimizer->step_and_clear();
    return {loss, norm};
  }
};

std::unique_ptr<RecordedStep> record_model(std::shared_ptr<nn::LanguageModel> model, std::int64_t batch,
                                           std::int64_t tokens, std::int64_t words, const Group& group) {
  model->materialize(nn::Seed{3});
  const auto training = std::make_shared<Training>(std::make_unique<nn::AdamW>(model->parameters()));
  const Tensor text = cast(
      random_uniform({batch, tokens + 1}, random_key(2, "tokens", "data"), 0, static_cast<double>(words)), DType::i32);
  return std::make_unique<RecordedStep>(
      [model, training](std::span<const Tensor> in) { return training->finish((*model)(in[0], in[1])); },
      std::vector{contiguous(narrow(text, 1, 0, tokens)), contiguous(narrow(text, 1, 1, tokens))}, group);
}

std::unique_ptr<RecordedStep> record_mini(const Group& group) {
  const nn::Gpt::Config config{
      .vocabulary = 65, .tokens = 64, .layers = 4, .heads = 4, .width = 128, .tanh_gelu = true};
  return record_model(std::make_shared<nn::Gpt>(config), 4, 64, 65, group);
}

std::unique_ptr<RecordedStep> record_bigger(const Group& group) {
  const nn::Gpt::Config config{
      .vocabulary = 256, .tokens = 256, .layers = 2, .heads = 6, .width = 384, .tanh_gelu = true};
  return record_model(std::make_shared<nn::Gpt>(config), 2, 64, 256, group);
}

std::unique_ptr<RecordedStep> record_llama(const Group& group) {
  const nn::Llama::Config config{
      .vocabulary = 17, .tokens = 8, .layers = 1, .heads = 2, .kv_heads = 1, .width = 16, .hidden = 32};
  return record_model(std::make_shared<nn::Llama>(config), 2, 8, 17, group);
}

// A limit makes activations leave memory as soon as they can.
std::unique_ptr<RecordedStep> record_plan(std::string_view text, const Group& group) {
  constexpr std::int64_t kPlanRows = 4, kPlanTokens = 16, kPlanWords = 17;
  const nn::Gpt::Config config{
      .vocabulary = kPlanWords, .tokens = kPlanTokens, .layers = 3, .heads = 2, .width = 32, .tanh_gelu = true};
  const nn::TrainingPlan plan = nn::parse_plan(text);
  const nn::JobMesh mesh(plan.mesh, group);
  const nn::PlanFacts facts{
      .ranks = group->size(), .batch = kPlanRows * mesh.num_data_ranks(), .memory_limit = std::int64_t{1} << 16};
  const auto model = std::make_shared<nn::Gpt>(config);
  nn::apply(plan, facts, *model, mesh);
  model->materialize(nn::Seed{3});
  const auto training = std::make_shared<Training>(std::make_unique<nn::AdamW>(model->parameters()));
  nn::apply_offload(plan, facts, *model, *training->optimizer);
  const auto rank = static_cast<std::uint64_t>(mesh.data_rank());
  const Tensor words = cast(random_uniform({kPlanRows, kPlanTokens + 1}, random_key(2, "tokens", "data", rank), 0,
                                           static_cast<double>(kPlanWords)),
                            DType::i32);
  return std::make_unique<RecordedStep>(
      [plan, mesh, model, training](std::span<const Tensor> in) {
        const auto loss = [&](std::span<const Tensor> part) { return (*model)(part[0], part[1]); };
        return training->update(nn::forward_backward(plan, *model, in, loss));
      },
      std::vector{contiguous(narrow(words, 1, 0, kPlanTokens)), contiguous(narrow(words, 1, 1, kPlanTokens))}, group);
}

// Memory of the host that is in no account; what nobody has written is no number.
Ref<Storage> home_in_memory(std::int64_t bytes) {
  const auto memory = std::make_shared<Bits>(static_cast<std::size_t>(bytes), std::byte{0xa5});
  return Storage::borrow(memory->data(), bytes, [memory] {});
}

// The mesh lives as long as the step, and so does what is sharded over it.
std::unique_ptr<RecordedStep> record_sharded(const Group& group, const Grid3& grid,
                                             std::shared_ptr<ResidualNet> net = std::make_shared<ResidualNet>(5, 8),
                                             const nn::UnitPolicy& blocks = {}) {
  const auto root = std::make_shared<DeviceMesh>(grid.mesh(group));
  if (grid.tp > 1) shard_2d(*net, *root, grid, true);
  else shard(*net, grid.data(*root), blocks);
  net->materialize(nn::Seed{11});
  const auto training = std::make_shared<Training>(std::make_unique<nn::AdamW>(net->parameters()));
  return std::make_unique<RecordedStep>(
      [root, net, training](std::span<const Tensor> in) { return training->finish(mean_square((*net)(in[0]), in[1])); },
      std::vector{rows_of(batch3(12, 3, 0, "x"), *root), rows_of(batch3(12, 2, 0, "y"), *root)}, group);
}

}  // namespace

RecordedStep::RecordedStep(Function step, std::vector<Tensor> arguments, Group group)
    : step_(std::move(step)), arguments_(std::move(arguments)), group_(std::move(group)) {
  for (int i = 0; i < 2; ++i) step_(arguments_);
  RankContext::current().drain_queues();
  state_ = bits_of_slots();
  given_bits_ = bits_of_all(arguments_);
  Recorder recorder(arguments_);
  const std::vector<Tensor> results = step_(arguments_);
  Graph graph = recorder.finish(results);
  recorded_ = std::move(graph.program);
  live_ = std::move(graph.live);
  complete_ = recorded_;
  run_passes(complete_, standard_passes());
}

// In place, so that parameters that lie in a unit's buffer stay there.
void RecordedStep::restore() const {
  RankContext& context = RankContext::current();
  context.drain_queues();
  for (std::size_t i = 0; i < state_.size(); ++i) {
    if (living_slots()[i]->has_value()) put(state_[i], living_slots()[i]->value().local());
    living_slots()[i]->clear_grad();
  }
  for (std::size_t i = 0; i < arguments_.size(); ++i) put(given_bits_[i], arguments_[i].local());
}

Live RecordedStep::live_for(const Program& program) const {
  Live live = live_;
  if (program.constants.size() == live.constants.size()) return live;
  OffloadHomes homes(Device::cpu(), std::filesystem::temp_directory_path().string());
  live.constants.resize(program.constants.size());
  for (const Value& value : program.values)
    if (Ref<Storage>* const home =
            value.kind == ValueKind::constant ? &live.constants[static_cast<std::size_t>(value.source)] : nullptr;
        home && !*home)
      *home = value.source % 2 ? home_in_memory(value.bytes) : homes.take(value.bytes).storage();
  return live;
}

// What the run before has left in homes that were recorded would stand for what this one forgets to copy there.
void RecordedStep::fill_homes() const {
  const std::vector<bool> are_homes = homes_of(recorded_);
  for (std::size_t i = 0; i < are_homes.size(); ++i)
    if (are_homes[i])
      std::memset(live_.constants[i]->write(), 0xa5, static_cast<std::size_t>(live_.constants[i]->bytes()));
}

Outcome RecordedStep::run(const Program& program) const {
  restore();
  fill_homes();
  RankContext& context = RankContext::current();
  Accounting& accounting = context.allocator().accounting();
  Outcome outcome;
  const Graph graph{program, live_for(program)};
  Interpreter interpreter(graph);
  accounting.reset_peaks();
  const std::vector<Tensor> results = interpreter.run(arguments_);
  outcome.peaks = accounting.peak();
  outcome.peak = accounting.total_peak();
  context.drain_queues();
  outcome.left = accounting.current();
  outcome.results = bits_of_all(results);
  outcome.slots = bits_of_slots();
  outcome.gradients = bits_of_gradients();
  outcome.arguments = bits_of_all(arguments_);
  return outcome;
}

int RecordedStep::count(bool here) const {
  const auto ranks = static_cast<std::size_t>(group_->size());
  std::vector<std::int64_t> all(ranks, 0), counts(ranks, 1);
  all[static_cast<std::size_t>(group_->rank())] = here;
  if (ranks > 1) group_->host().all_gather({in_place(all.data(), DType::i64, counts)});
  int count = 0;
  for (const std::int64_t one : all) count += one != 0;
  return count;
}

Prices prices_of_cheap_copies() {
  Prices prices;
  prices.rows[copy_key(CopyKind::evict)] = 2e-11;
  prices.rows[copy_key(CopyKind::fetch)] = 1e-11;
  return prices;
}

Program planned(const RecordedStep& step, int percent, bool moves_out) {
  const std::vector<Pass> passes = standard_passes();
  const Prices prices = prices_of_cheap_copies();
  for (;; percent += 5) {
    try {
      return fit_program(step.recorded(), {.budget = fmt::format("{}%", percent),
                                           .passes = passes,
                                           .group = &step.group(),
                                           .prices = moves_out ? &prices : nullptr,
                                           .moves_out = moves_out})
          .program;
    } catch (const Error&) {
      if (percent >= 100) throw;
    }
  }
}

std::vector<StepCase> step_cases() {
  return {
      {"mini", 1, record_mini},
      {"bigger", 1, record_bigger},
      {"tiny_llama", 1, record_llama},
      {"HSDP 2x2", 4, [](const Group& group) { return record_sharded(group, {2, 2, 1}); }},
      {"fully_shard 2 x tensor parallel 2", 4, [](const Group& group) { return record_sharded(group, {1, 2, 2}); }}};
}

std::vector<StepCase> step_cases_of_plans() {
  const auto by = [](const char* name, int ranks, const char* plan) {
    return StepCase{name, ranks, [plan](const Group& group) { return record_plan(plan, group); }};
  };
  return {by("accumulated", 1, "fully_shard=false micro_batches=2"),
          by("activations in a file", 1, "fully_shard=false offload_activations=blocks"),
          by("HSDP 2x2, accumulated, activations in a file", 4,
             "mesh=\"replicate=2,dp=2\" strategy=hybrid_shard micro_batches=2 offload_activations=blocks"),
          by("state in a file", 2, "offload=all")};
}

std::unique_ptr<RecordedStep> record_kept_units(const Group& group) {
  return record_sharded(group, {1, 2, 1}, std::make_shared<ResidualNet>(32, 64, 4), {.reshard_after_forward = false});
}

std::unique_ptr<RecordedStep> record_large_units(const std::shared_ptr<ProcessGroup>& group) {
  return record_sharded(group, {1, 2, 1}, std::make_shared<ResidualNet>(32, 64, 4));
}

void for_each_step(const std::function<void(const StepCase&, const RecordedStep&)>& body) {
  for (const StepCase& step : step_cases())
    run_ranks(step.ranks, [&](const Group& group) {
      SCOPED_TRACE(fmt::format("{}, rank {}", step.name, group->rank()));
      body(step, *step.record(group));
    });
}

}  // namespace sherd::testing
