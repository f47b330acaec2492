// A ghost rank lives for the time of a prediction, with a context, a world and a mesh of its own. A batch is there
// while its update runs, and what an update returns until it has ended.
#include "nn/plan/predict.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "nn/memory_names.h"
#include "nn/optim/adamw.h"
#include "nn/random_rows.h"
#include "runtime/comm/group/ghost_group.h"
#include "runtime/comm/job/world.h"
#include "runtime/exec/context.h"
#include "runtime/op/core/grad_mode.h"

namespace sherd::nn {

namespace {

using Loop = PlannedModel::Loop;
using BuildsLoop = std::function<Loop(const JobMesh& mesh)>;

class Ghost {
 public:
  Ghost(const TrainingPlan& plan, const PlanFacts& facts, int rank)
      : plan_(plan),
        scope_(fmt::format("rank {} of {}", rank, facts.ranks), {.ghost = true}),
        memory_(RankContext::current().allocator(plan.device)) {
    set_world_group(make_ghost_group(rank, facts.ranks));
    memory_.set_limit(facts.memory_limit);
  }

  Prediction run(const BuildsLoop& build, const LooksAtMemory& look) {
    MemoryLog::Namer namer;  // of pictures, which somebody looks at
    if (look) namer = names_by_slots([this] { return loop_.model; });
    const MemoryLog log(memory_, std::move(namer));
    try {
      rehearse(build);
    } catch (const OutOfMemory&) {
      if (look) look(log);
      throw;
    }
    predicted_.moment = log.peak().moment;
    if (look) look(log);
    return std::move(predicted_);
  }

 private:
  void rehearse(const BuildsLoop& build) {
    const JobMesh mesh(plan_.mesh, world_group());
    if (mesh.group()->size() > 1) RankContext::current().rank_text = mesh.rank_text();
    loop_ = build(mesh);
    note("building the model");
    // An order is recorded in the first step and a program in the second; eager steps from the second on are the same.
    const int steps = plan_.compiled ? 4 : 2;
    for (int i = 0; i < steps; ++i) update(fmt::format("step {}", i + 1));
    predicted_.held = memory_.accounting().current();
    if (!loop_.evaluate) return;
    memory_.accounting().reset_peaks();
    loop_.evaluate();
    count("evaluation");
    update("a step after an evaluation");  // which may leave parameters gathered
  }

  void update(std::string when) {
    memory_.accounting().reset_peaks();
    const CommCounter counter;
    loop_.update(updates_++);
    predicted_.issued = counter.entries();
    count(std::move(when));
  }

  void count(std::string when) {
    for (std::size_t c = 0; c < kNumCategories; ++c)
      predicted_.peak[c] = std::max(predicted_.peak[c], memory_.accounting().peak()[c]);
    note(std::move(when));
  }

  void note(std::string when) {
    const Accounting& account = memory_.accounting();
    if (account.total_peak() <= predicted_.bytes) return;
    predicted_.bytes = account.total_peak();
    predicted_.at_peak = account.at_peak();
    predicted_.when = std::move(when);
  }

  const TrainingPlan& plan_;
  const RankScope scope_;
  Allocator& memory_;
  Loop loop_;
  std::int64_t updates_ = 0;
  Prediction predicted_;
};

/// A PlannedModel that is made.
struct Training {
  TrainingPlan plan;
  const PlannedModel& planned;
  std::unique_ptr<Module> model = planned.make();
  std::int64_t rows = 0;
  std::unique_ptr<Optimizer> optimizer{};
  std::optional<LossScaler> scaler{};
  PlannedModel::Step step{};

  std::vector<Tensor> batch(std::int64_t parts) const { return planned.batch(rows / parts, plan.device); }
  Tensor loss(std::span<const Tensor> in) { return planned.loss(*model, in); }

  std::vector<Tensor> run(std::span<const Tensor> in) {
    Tensor mean_loss =
        forward_backward(plan, *model, in, [this](auto part) { return loss(part); },
                         {.scaler = scaler ? &*scaler : nullptr, .leaves_share_pass = planned.leaves_share_pass});
    if (scaler) scaler->unscale(*optimizer);
    optimizer->step_and_clear();
    if (scaler) scaler->update();
    return {std::move(mean_loss)};
  }

  void evaluate() {
    const GradMode off(false);
    model->train(false);
    for (std::int64_t i = 0; i < std::min<std::int64_t>(plan.micro_batches, 2); ++i) loss(batch(plan.micro_batches));
    model->train(true);
  }
};

Loop loop_of(const TrainingPlan& plan, const PlanFacts& facts, const PlannedModel& planned, const JobMesh& mesh) {
  const auto training = std::make_shared<Training>(on_ranks(plan, mesh.num_data_ranks()), planned);
  Training& t = *training;
  t.rows = apply(plan, facts, *t.model, mesh, planned.styles).local_batch;
  t.model->materialize(Seed{1}, plan.device);
  t.optimizer =
      planned.optimizer ? planned.optimizer(t.model->parameters()) : std::make_unique<AdamW>(t.model->parameters());
  apply_offload(plan, facts, *t.model, *t.optimizer);
  if (const auto scaling = plan.loss_scale.options(has_f16(plan))) t.scaler.emplace(*scaling);
  t.step = [&t](std::span<const Tensor> in) { return t.run(in); };
  if (plan.compiled) t.step = planned.capture(std::move(t.step));
  Loop loop{.update =
                [training](std::int64_t step) {
                  set_step(step);
                  const std::vector<Tensor> in = training->batch(1), out = training->step(in);
                },
            .model = t.model.get()};
  if (planned.evaluates) loop.evaluate = [training] { training->evaluate(); };
  return loop;
}

}  // namespace

Prediction predict(const TrainingPlan& plan, const PlanFacts& facts, const PlannedModel& model, int rank,
                   const LooksAtMemory& look) {
  check(!model.build || (!model.make && !model.batch && !model.loss && !model.optimizer && !model.capture),
        "predict: PlannedModel::build makes the whole loop, so its other parts would not be read; leave them out");
  check(model.build || (model.make && model.batch && model.loss),
        "predict: the model has no {}; set PlannedModel::make, batch and loss, or build",
        !model.make    ? "make"
        : !model.batch ? "batch"
                       : "loss");
  if (model.build) return Ghost(plan, facts, rank).run(model.build, look);
  check(facts.batch > 0, "predict: a step has {} rows; name as many as the job trains, in PlanFacts::batch",
        facts.batch);
  check(
      !plan.compiled || model.capture,
      "predict: the plan is compiled, and nothing says how; set PlannedModel::capture, to a CompiledStep of the step");
  const auto build = [&](const JobMesh& mesh) { return loop_of(plan, facts, model, mesh); };
  return Ghost(plan, facts, rank).run(build, look);
}

}  // namespace sherd::nn
