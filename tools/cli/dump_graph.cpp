#include "tools/cli/dump_graph.h"

#include <filesystem>
#include <numeric>

#include "compile/run/budget_curve.h"
#include "compile/run/dump.h"
#include "compile/run/footprint.h"
#include "compile/run/measure_prices.h"
#include "runtime/comm/group/agree.h"
#include "tools/table/graph_pictures.h"
#include "tools/train/ghost_recording.h"
#include "tools/train/output_file.h"

namespace sherd {

namespace {

void write_picture(const std::string& folder, std::string_view name, std::string_view svg) {
  const std::string path = (std::filesystem::path(folder) / name).string();
  train::write_all(train::open_output(path, "picture"), svg, "picture", path);
}

}  // namespace

void dump_graph(train::Run& run) {
  const train::TrainConfig& config = run.config;
  const std::string folder = run.group->rank() == 0 ? config.dump_graph : "";
  const ir::Program* const known = run.step->recorded();
  if (!known) {  // state that the first update would make
    run.step->optimizer().state();
    run.step->optimizer().counts();
  }
  const ir::Program recorded =
      known ? *known
            : train::recorded_on_ghost(config, run.group->rank(), run.group->size(), run.data->vocabulary().size(), {});
  const std::vector<ir::Pass> passes = ir::passes_named(config.passes);
  ir::Program complete = recorded;
  run_passes(complete, passes);
  const ir::Footprint held = footprint_of(complete);
  const CategoryBytes others = bytes_beside(complete, held, false);
  const std::int64_t beside = std::accumulate(others.begin(), others.end(), std::int64_t{0});
  const std::optional<CompiledStep::Predicted> predicted = run.step->predicted();
  const Prices prices =
      predicted && predicted->prices ? *predicted->prices : measure_prices(complete, {.group = run.group});
  const MemoryBudget& budget = config.plan.memory_budget;
  const FitOptions options{.budget = budget,
                           .passes = passes,
                           .beside = beside,
                           .group = run.group.get(),
                           .recorded = &held,
                           .prices = &prices,
                           .moves_out = config.plan.offload_activations.any()};
  const Fitted fitted = dump_graph(recorded, options, folder);
  together(*run.group, [&] {
    if (folder.empty()) return;
    const table::DrawnProgram steps[] = {{"recorded", &complete, &held},
                                         {"as it runs", &fitted.program, &fitted.footprint}};
    std::optional<std::int64_t> given;
    if (budget.is_set()) given = budget.bytes(held.peak + beside);
    write_picture(folder, "memory.svg", table::memory_svg(steps, beside, given));
    write_picture(folder, "budget.svg",
                  table::budget_svg(budget_curve(recorded, options), {fitted.footprint.peak + beside, fitted.seconds}));
  });
}

}  // namespace sherd
