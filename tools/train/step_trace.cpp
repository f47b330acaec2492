#include "tools/train/step_trace.h"

#include <algorithm>
#include <cstdio>

#include <sys/resource.h>

#include "runtime/comm/group/agree.h"
#include "runtime/exec/device_times.h"
#include "runtime/exec/trace_json.h"
#include "runtime/tensor/error.h"
#include "tools/train/output_file.h"
#include "tools/train/version.h"

namespace sherd::train {

namespace {

constexpr std::int64_t kWarmUpSteps = 10, kDefaultSteps = 5;

void write_text(const std::string& path, std::string_view text) {
  check_replaceable(path, "trace", kTraceBeginning);
  write_all(open_output(path, "trace"), text, "trace", path);
}

// "run/trace.json" -> "run/trace.rank2.json"
std::string path_of_rank(const std::string& path, int rank) {
  if (rank == 0) return path;
  const std::size_t dot = path.rfind('.'), slash = path.rfind('/');
  const std::size_t at = dot == std::string::npos || (slash != std::string::npos && dot < slash) ? path.size() : dot;
  return path.substr(0, at) + fmt::format(".rank{}", rank) + path.substr(at);
}

}  // namespace

StepRange traced_steps(const StepRange& asked, std::int64_t first_step, std::int64_t last_step) {
  if (asked.is_open()) {
    const std::int64_t first = std::max(first_step, std::min(first_step + kWarmUpSteps, last_step - kDefaultSteps + 1));
    return {first, std::min(first + kDefaultSteps - 1, last_step)};
  }
  check(asked.first >= first_step && asked.last <= last_step,
        "trace_steps = {}: this run makes steps {} to {}; choose among those", asked.text(), first_step, last_step);
  return asked;
}

StepTrace::StepTrace(std::string path, const StepRange& steps, std::int64_t first_step, std::int64_t last_step,
                     ProcessGroup& group)
    : path_(std::move(path)), group_(group) {
  if (path_.empty() || first_step >= last_step) return;
  together(group_, [&] {
    range_ = traced_steps(steps, first_step + 1, last_step);
    if (group_.rank() == 0) write_text(path_, trace_file({}, {}));
  });
  trace_ = std::make_unique<Trace>();
}

StepTrace::~StepTrace() {
  if (!trace_ || trace_->spans().used == 0) return;
  try {
    const int rank = group_.rank();
    write(path_of_rank(path_, rank), {trace_events(*trace_, rank)}, fmt::format("{} of {}", rank, group_.size()),
          trace_->dropped());
  } catch (const std::exception& error) {  // the run failed; that is the error to be seen
    std::fprintf(stderr, "sherd: %s\n", error.what());
  }
}

Trace* StepTrace::trace_of(std::int64_t step) {
  if (!trace_ || step < range_.first - 1 || step > range_.last) return nullptr;
  if (step == range_.first) trace_->clear();
  return trace_.get();
}

void StepTrace::after(std::int64_t step) {
  if (!trace_ || step != range_.last) return;
  const std::unique_ptr<Trace> trace = std::move(trace_);
  {
    const Trace::Recording recording(*trace);
    RankContext& context = RankContext::current();
    for (const auto& device : context.devices()) device->synchronize();  // what the steps have left there
    collect_device_times();
  }
  const std::vector<std::string> texts = gather_text(group_, trace_events(*trace, group_.rank()));
  std::int64_t dropped = 0;
  for (const std::string& text : gather_text(group_, std::to_string(trace->dropped()))) dropped += std::stoll(text);
  together(group_, [&] {
    if (group_.rank() == 0) write(path_, texts, std::to_string(group_.size()), dropped);
  });
}

void StepTrace::write(std::string path, const std::vector<std::string>& events, std::string_view ranks,
                      std::int64_t dropped) const {
  std::vector<std::pair<std::string, std::string>> notes = {{"program", fmt::format("sherd {}", kVersion)},
                                                            {"ranks", std::string(ranks)},
                                                            {"steps", fmt::format("{}:{}", range_.first, range_.last)},
                                                            {"spans dropped", std::to_string(dropped)}};
  if (dropped > 0)
    notes.emplace_back("limit",
                       fmt::format("{} spans per rank; record fewer steps with trace_steps", Trace::kMaxSpans));
  write_text(path, trace_file(events, notes));
}

StepTrace::Step::Counters StepTrace::Step::counters() {
  rusage usage{};  // of the process: kernels fault on worker threads too
  ::getrusage(RUSAGE_SELF, &usage);
  RankContext& context = RankContext::current();
  Counters counters{usage.ru_minflt, context.allocator().system_calls(), context.allocator().reserved_bytes()};
  for (const auto& device : context.devices()) {
    counters.system_allocations += device->allocator().system_calls();
    counters.reserved_bytes += device->allocator().reserved_bytes();
  }
  return counters;
}

StepTrace::Step::Step(StepTrace& owner, std::int64_t step) : trace_(owner.trace_of(step)) {
  if (!trace_) return;
  recording_.emplace(*trace_);
  const std::string& name = *trace_->intern(fmt::format("step {}", step));
  start_ = Trace::now();
  before_ = counters();
  span_.emplace(name);
}

StepTrace::Step::~Step() {
  if (!trace_) return;
  span_.reset();
  const Counters now = counters();
  const std::int64_t end = Trace::now();
  trace_->count("page faults", "per step (process)", start_, now.page_faults - before_.page_faults);
  trace_->count("system allocations", "per step", start_, now.system_allocations - before_.system_allocations);
  trace_->count("allocator bytes", "reserved", end, now.reserved_bytes);
}

}  // namespace sherd::train
