// What captured steps take before they run and between their nodes: passes, proofs, guards.
#include <time.h>

#include <functional>

#include "compile/capture/capture.h"
#include "compile/ir/analysis/meaning.h"
#include "compile/ir/builder.h"
#include "compile/ir/verify.h"
#include "compile/passes/pass.h"
#include "compile/run/budget_curve.h"
#include "compile/run/guards.h"
#include "compile/run/measure_prices.h"
#include "nn/parallel/shard/wrap/fully_shard.h"
#include "runtime/comm/group/ghost_group.h"
#include "runtime/comm/job/world.h"
#include "runtime/exec/context.h"
#include "runtime/op/core/dims.h"
#include "runtime/op/rows/ops.h"
#include "tools/bench/training.h"
#include "tools/train/ghost_recording.h"

namespace sherd::bench {

namespace {

using nlohmann::json;

// `program --layers N --batch B [--times passes]`: records a training step of mini with clipping and AdamW. A request
// is a number of calls; each sample is what verify() of the program that runs and its meaning take together, or what
// run_passes() takes on the recorded one. Answers also say how many operations its nodes are.
ir::Program recorded_step(const BenchRow& row) {
  PlainLoop loop{.model = make_bench_model(row.model()), .clips = true};
  loop.draw();
  const BenchRow::Batch batch = random_batch(row, 0);
  const Tensor in[] = {batch.tokens, batch.targets};
  loop.step(in);  // lazy state settles
  Recorder recorder(in);
  const Tensor loss = loop.step(in);
  return recorder.finish({&loss, 1}).program;
}

// Operations of all nodes, by their rows.
double flops_of(const ir::Program& program) {
  double flops = 0;
  for (const ir::GraphNode& node : program.nodes) {
    std::vector<TensorMeta> out;
    for (const ir::TensorRef& ref : node.out)
      if (ref.defined()) out.emplace_back(ref.shape, ref.dtype);
    flops += op_cost(*node.op, metas_of(program, node), node.attrs, out).flops;
  }
  return flops;
}

Ready begin_program(std::span<const std::string_view> args) {
  std::string times = "verify";
  const BenchRow row = take_row(args, {.name = "mini", .layers = 32, .batch = 2}, {{"times", &times}});
  BenchModel model = row.model();
  model.batch = row.batch;
  const ir::Program recorded = recorded_step(row);
  const auto program = std::make_shared<ir::Program>(recorded);
  run_passes(*program, ir::standard_passes());
  const double flops = flops_of(*program), formula_flops = model.step_flops();
  return {
      {{"peer", "sherd"}, {"nodes", program->nodes.size()}}, [=](const std::string& request) -> json {
        const std::vector<double> seconds = samples_of(asked(request, "CALLS").numbers[0], [&] {
          if (times == "passes") *program = recorded;
          return seconds_of([&] {
            if (times == "passes") return run_passes(*program, ir::standard_passes());
            verify(*program);
            const ir::Meanings meanings(*program);
          });
        });
        return {
            {"seconds", seconds}, {"nodes", program->nodes.size()}, {"flops", flops}, {"formula_flops", formula_flops}};
      }};
}

double cpu_seconds_of(const std::function<void()>& work) {
  const auto now = [] {
    timespec time{};
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  };
  const double start = now();
  work();
  return now() - start;
}

// It is a plain loop over the same blocks, on this rank.
double captured_call_seconds(const BenchRow& row) {
  PlainLoop loop{.model = make_bench_model(row.model()), .clips = true};
  const nn::JobMesh mesh(row.plan.mesh, world_group());
  for (nn::Module* block : loop.model->blocks()) nn::fully_shard(*block, mesh.data());
  nn::fully_shard(*loop.model, mesh.data());
  loop.draw();
  const BenchRow::Batch batch = random_batch(row, 0);
  const Tensor in[] = {batch.tokens, batch.targets};
  for (int i = 0; i < 2; ++i) loop.step(in);  // lazy state settles
  return cpu_seconds_of([&] {
    Recorder recorder(in);
    const Tensor loss = loop.step(in);
    recorder.finish({&loss, 1});
  });
}

// `capture --layers N --mesh dp=2`: what `sherd train` does before the first update within a budget, on rank 0 of two
// that are fully sharded, as a ghost. A request is a number of samples; all seconds are of this thread's CPU: of the
// ghost's captured call, of recorded_on_ghost(), which also builds the model and makes three updates before; of all
// passes with a budget of 75 %; and of a curve of ten budgets.
Ready begin_capture(std::span<const std::string_view> args) {
  const BenchRow row = take_row(args, {.name = "mini", .plan = {.mesh = "dp=2"}, .layers = 32});
  return {greeting_of(row), [=](const std::string& request) -> json {
            const int ranks = ranks_of_mesh(row.plan.mesh.text());
            TrainConfig config = train_config(row.model(), row.plan, ranks);
            config.plan.compiled = true;
            const auto record = [&] {
              return train::recorded_on_ghost(config, 0, ranks, row.model().vocabulary, {.metrics = false});
            };
            const Prices prices = measure_prices(record());
            const RankScope ghost("rank 0", {.ghost = true});
            set_world_group(make_ghost_group(0, ranks));
            const nn::JobMesh mesh(row.plan.mesh, world_group());
            const std::vector<ir::Pass> all = ir::standard_passes();
            const FitOptions options{.budget = "75%", .passes = all, .prices = &prices};
            std::vector<double> capture, recording, passes, curve;
            std::size_t nodes = 0;
            for (std::int64_t left = asked(request, "SAMPLES").numbers[0]; left > 0; --left) {
              capture.push_back(captured_call_seconds(row));
              ir::Program recorded;
              recording.push_back(cpu_seconds_of([&] { recorded = record(); }));
              nodes = recorded.nodes.size();
              check(nodes > 0, "the ghost has recorded no step");
              passes.push_back(cpu_seconds_of([&] { fit_program(recorded, options); }));
              curve.push_back(cpu_seconds_of([&] { budget_curve(recorded, options); }));
            }
            return {{"seconds", capture},
                    {"recording_seconds", recording},
                    {"passes_seconds", passes},
                    {"curve_seconds", curve},
                    {"nodes", nodes}};
          }};
}

// `guards --layers N`: a captured training step of mini, each block a unit of fully_shard, on one rank. A request is a
// number of samples; each is the mean of what finding that the recording fits takes, when nothing has changed since the
// last replay. seconds_to_look_at_all is what it takes otherwise.
class GuardsRun {
 public:
  explicit GuardsRun(const BenchModel& of) : loop_{.model = make_bench_model(of)} {
    const DeviceMesh mesh(world_group(), "dp");
    for (nn::Module* block : loop_.model->blocks()) nn::fully_shard(*block, mesh);
    nn::fully_shard(*loop_.model, mesh);
    loop_.draw();
    arguments_ = {zeros({of.batch, of.sequence}, DType::i32), zeros({of.batch, of.sequence}, DType::i32)};
    while (step_.mode() != CompiledStep::Mode::replay) step_(arguments_);
    guards_ = std::make_unique<Guards>(*step_.graph());
    for (int i = 0; i < 2; ++i) {
      look();
      replay();
    }
  }

  json answer(const std::string& request) {
    std::vector<double> all;
    const std::vector<double> seconds = samples_of(asked(request, "SAMPLES").numbers[0], [&] {
      const double taken = seconds_per_call(1000, [&] { look(); });
      RankContext::current().rank_register->note_change();  // so it looks at all until the next replay
      all.push_back(seconds_of([&] { look(); }));
      replay();
      return taken;
    });
    return {{"seconds", seconds},
            {"seconds_to_look_at_all", all},
            {"slots", step_.graph()->program.slots.size()},
            {"looks", guards_->num_looks()}};
  }

 private:
  void look() {
    const std::string found = guards_->mismatch(arguments_);
    check(found.empty(), "the recording does not fit: {}", found);
  }
  void replay() {
    step_(arguments_);
    guards_->replayed();
  }

  PlainLoop loop_;
  std::vector<Tensor> arguments_;
  CompiledStep step_{[this](std::span<const Tensor> in) { return std::vector{loop_.step(in)}; }};
  std::unique_ptr<Guards> guards_;
};

Ready begin_guards(std::span<const std::string_view> args) {
  const BenchRow row = take_row(args, {.name = "mini", .layers = 32});
  BenchModel model = row.model();
  model.batch = 1;
  return ready<GuardsRun>(greeting_of(row), nullptr, model);
}

constexpr Works::value_type kProgramWorks[] = {
    {"program", begin_program}, {"capture", begin_capture}, {"guards", begin_guards}};

}  // namespace

Works program_works() { return kProgramWorks; }

}  // namespace sherd::bench
