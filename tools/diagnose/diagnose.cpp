#include "tools/diagnose/diagnose.h"

#include <optional>
#include <string>

#include "tools/diagnose/report.h"
#include "tools/train/exit_status.h"
#include "tools/train/flags.h"

namespace sherd {

namespace {

using namespace diagnose;

constexpr std::string_view kDiagnoseUsage =
    "usage: sherd diagnose RUN.jsonl [flags]\n\n"
    "Says of a run, by the file that `sherd train --metrics RUN.jsonl` wrote, what its steps are made of and what "
    "makes\n"
    "them longer than they had to be: findings, the one that costs most first, each with what shows it, the flags "
    "that\n"
    "help, and what they gain, by a simulation of the step with the run's own prices or as measured.\n"
    "docs/slow.md tells of each finding.\n\n";

struct DiagnoseFlags {
  std::string trace, baseline, device_model;
  bool json = false;
};

struct Examined {
  Shares shares;
  std::vector<Finding> findings;
  std::string bound;
  std::vector<std::string> notes;
};

Examined examine(const RunFile& run, const TraceFile* trace, const std::string& device_model) {
  const Shares shares = shares_of(run);
  const PricedRun priced(run, shares, trace, device_model);
  const RunCase facts{run, shares, priced};
  Examined examined{shares, findings_of(facts), bound_of(facts), run.notes};
  if (!priced.why_not().empty())
    examined.notes.push_back(
        fmt::format("nothing is simulated, as no ghost makes this run here: {}", priced.why_not()));
  else
    examined.notes.push_back(fmt::format(
        "simulated gains: compute and transfers of a step are {:.2f} ms measured and {:.2f} ms simulated, by {}",
        1e3 * priced.measured_seconds(), 1e3 * priced.simulated_seconds(),
        trace                  ? "the calls of the trace"
        : device_model.empty() ? "rates of a plain CPU, scaled; --trace has the run's own"
                               : "the device model, scaled"));
  return examined;
}

}  // namespace

int run_diagnose(std::span<const std::string_view> args) {
  DiagnoseFlags flags;
  ConfigTable table;
  table.add("trace", &flags.trace, "file of `sherd train --trace` of the same run: what each call takes");
  table.add("baseline", &flags.baseline, "metrics of another run: splits the difference of both over the same shares");
  table.add(
      "device_model", &flags.device_model,
      "what prices calls that the trace does not have: a JSON file, of a model or of sherd calibrate, or a name, as of "
      "sherd plan");
  table.add("json", &flags.json, "one JSON object");
  const auto words = read_command_line(table, args, kDiagnoseUsage);
  if (!words) return kDone;
  check_usage(words->size() == 1, "sherd diagnose takes one metrics file, got {}",
              words->empty() ? "none" : fmt::format("\"{}\"", fmt::join(*words, "\" and \"")));
  const RunFile run = read_run(words->front());
  std::optional<TraceFile> trace;
  if (!flags.trace.empty()) trace = read_trace(flags.trace);
  Examined examined = examine(run, trace ? &*trace : nullptr, flags.device_model);
  std::optional<Comparison> compared;
  if (!flags.baseline.empty()) {
    const RunFile before = read_run(flags.baseline);
    compared = compare(before, run);
    rank_by_difference(examined.findings, examine(before, nullptr, flags.device_model).findings);
  }
  const Diagnosis diagnosis{run,
                            examined.shares,
                            std::move(examined.findings),
                            std::move(examined.bound),
                            std::move(examined.notes),
                            std::move(compared)};
  fmt::print("{}", flags.json ? to_json(diagnosis) : to_text(diagnosis));
  return kDone;
}

}  // namespace sherd
