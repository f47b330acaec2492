#pragma once
// `--trace FILE.json`: which steps of a run are recorded, and one file from all ranks.
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "runtime/comm/group/process_group.h"
#include "runtime/exec/trace.h"
#include "tools/train/config.h"

namespace sherd::train {

/// What every such file begins with.
inline constexpr std::string_view kTraceBeginning = R"({"displayTimeUnit":)";

/// `asked`, or if that is open five steps of the steady state: from the eleventh on, earlier if the run is shorter.
StepRange traced_steps(const StepRange& asked, std::int64_t first_step, std::int64_t last_step);

/// One per rank, on its thread. The step before the range is recorded too and thrown away, so that what happens once
/// (code pages of the recording itself, tables of names) is not in the trace. The file is written after the last step
/// of the range; if an exception leaves the run before, every rank writes what it has.
class StepTrace {
 public:
  /// `path` empty: nothing is ever recorded. Rank 0 creates the file now. Collective: Error on every rank if it cannot
  /// be, if what is there is no trace (check_replaceable()), or if the range lies outside steps first_step + 1 ..
  /// last_step.
  StepTrace(std::string path, const StepRange& steps, std::int64_t first_step, std::int64_t last_step,
            ProcessGroup& group);
  ~StepTrace();

  /// From construction to destruction the rank's thread records, if `step` is to be; destruction ends the step's span.
  class Step {
   public:
    Step(StepTrace& owner, std::int64_t step);
    ~Step();

   private:
    struct Counters {
      std::int64_t page_faults, system_allocations, reserved_bytes;  // of the host and of devices
    };
    static Counters counters();
    Trace* const trace_;
    std::optional<Trace::Recording> recording_;
    std::optional<TraceSpan> span_;
    std::int64_t start_ = 0;
    Counters before_{};
  };
  /// The trace while `step` is to be recorded, else null.
  Trace* trace_of(std::int64_t step);
  /// To be called after each step. Collective after the last of the range: gathers the ranks' events, and rank 0 writes
  /// the file; Error on every rank if it cannot.
  void after(std::int64_t step);

 private:
  void write(std::string path, const std::vector<std::string>& events, std::string_view ranks,
             std::int64_t dropped) const;

  std::string path_;
  StepRange range_ = "";
  ProcessGroup& group_;
  std::unique_ptr<Trace> trace_;  // none: nothing (more) to record
};

}  // namespace sherd::train
