#include "compile/run/fit.h"

#include <algorithm>
#include <exception>

#include "compile/ir/analysis/seconds.h"
#include "compile/run/device_replay.h"
#include "compile/run/footprint.h"
#include "runtime/comm/group/agree.h"
#include "runtime/exec/context.h"
#include "runtime/exec/purpose.h"

namespace sherd {

namespace {

// By item: whether all ranks say so.
std::vector<bool> on_all(ProcessGroup& group, const std::vector<bool>& own) {
  std::string text;
  for (const bool is_true : own) text += is_true ? '1' : '0';
  std::vector<bool> all = own;
  for (const std::string& other : gather_text(group, text)) {
    check(other.size() == text.size(), "ranks have {} and {} places where they must do alike", text.size(),
          other.size());
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = all[i] && other[i] == '1';
  }
  return all;
}

std::int64_t recorded_peak(ir::Program program, std::span<const ir::Pass> passes) {
  run_passes(program, passes);
  return footprint_of(program).peak;
}

// A transfer counts as what it takes, hidden or not: which of them hide is not for the choice of what to let go of.
std::vector<double> seconds_of_nodes(const ir::Program& program, const Prices& prices) {
  std::vector<double> seconds;
  for (const ir::NodeSeconds& node : node_seconds(program, prices)) seconds.push_back(node.compute + node.queued);
  return seconds;
}

ir::Elsewhere elsewhere_by(const Prices& prices) {
  const auto way = [&](CopyKind kind) -> ir::Elsewhere::Way {
    const ir::NodeSeconds byte = ir::copy_seconds(prices, kind, 1);
    return {.queued = byte.queued, .own = byte.compute};
  };
  return {.out = way(CopyKind::evict), .back = way(CopyKind::fetch)};
}

Fitted fit(ir::Program recorded, const FitOptions& options) {
  Fitted fitted{.recorded_peak = options.recorded ? options.recorded->peak : recorded_peak(recorded, options.passes)};
  const std::int64_t without = fitted.recorded_peak + options.beside;
  const bool fits = options.budget.is_set();  // else what runs is what was recorded
  ir::PassContext context{.may_improve = fits, .beside = options.beside};
  if (fits) context.footprint = footprint_of;
  if (options.prices)
    context.seconds = [&options](const ir::Program& program) { return seconds_of_nodes(program, *options.prices); };
  if (fits) {
    context.budget = options.budget.bytes(without);
    if (*context.budget >= without) {
      context.notes.push_back(fmt::format("budget: the step holds {}, no more than the {} that it is given",
                                          format_bytes(without), format_bytes(*context.budget)));
      context.budget.reset();
    }
  }
  if (fits && options.moves_out) context.elsewhere = elsewhere_by(options.prices ? *options.prices : Prices());
  if (options.group) context.on_all = [&](const std::vector<bool>& own) { return on_all(*options.group, own); };
  context.observe = options.observe;
  run_passes(recorded, options.passes, context);
  fitted.program = std::move(recorded);
  fitted.footprint = footprint_of(fitted.program);
  if (options.prices) fitted.seconds = step_seconds(fitted.program, *options.prices).seconds;
  fitted.notes = std::move(context.notes);
  return fitted;
}

}  // namespace

// What an eager step has left on its way to a file is not beside a replay, which leaves as much.
CategoryBytes bytes_beside(const ir::Program& program, const ir::Footprint& alone, bool has_arguments) {
  RankContext::current().drain_queues();
  CategoryBytes beside = RankContext::current().allocator(device_of(program)).accounting().current();
  for (std::size_t c = 0; c < beside.size(); ++c) beside[c] -= alone.before[c];
  if (!has_arguments)
    for (const ir::Value& value : program.values)
      if (value.kind == ir::ValueKind::argument) beside[static_cast<std::size_t>(value.category)] += value.bytes;
  return beside;
}

Fitted fit_program(ir::Program recorded, const FitOptions& options) {
  if (!options.group || options.group->size() == 1) return fit(std::move(recorded), options);
  const PurposeScope purpose("compile");
  Fitted fitted;
  std::exception_ptr failed;
  try {
    fitted = fit(std::move(recorded), options);
  } catch (const Error&) { failed = std::current_exception(); }
  together(*options.group, [&] {
    if (failed) std::rethrow_exception(failed);
  });
  return fitted;
}

}  // namespace sherd
