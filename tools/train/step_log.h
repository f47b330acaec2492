#pragma once
// From steps to their metrics. The numbers of a step are read when its device has them, while later steps are queued,
// so a step is reported in two parts: what the host knows at once, and what arrives.
#include <deque>
#include <functional>
#include <optional>
#include <span>
#include <string>

#include "runtime/comm/board/exposed.h"
#include "runtime/comm/group/host_group.h"
#include "runtime/op/core/host_reads.h"
#include "tools/train/divergence.h"
#include "tools/train/metrics.h"
#include "tools/train/summary.h"
#include "tools/train/train_step.h"

namespace sherd::train {

class StepLog {
 public:
  using Observer = std::function<void(const StepMetrics& metrics)>;

  /// `memory` is that of the tensors. `first_step` steps were made before: go_on_from() what is known of them.
  /// `seconds_at_peak`: what a step would take if its FLOPs ran at the peak of all ranks; 0 if that is not known.
  StepLog(ProcessGroup& group, Accounting& memory, std::int64_t first_step, const DivergenceRule& rule,
          double seconds_at_peak, const Observer& observe);
  ~StepLog();
  StepLog(const StepLog&) = delete;
  StepLog& operator=(const StepLog&) = delete;

  /// A step is about to run.
  void begin();
  /// It has been issued: starts to read its loss, gradient norm and loss scale. `known` holds step, lr and tokens.
  /// Blocks only while the numbers of more than four steps are on their way.
  void end(const StepMetrics& known, const TrainStep::Result& out);
  /// Reports the steps that are done. Does not block.
  void poll();
  /// Blocks until all steps are done and reports them.
  void finish();
  /// The same but for the last one, which the caller completes and reports.
  StepMetrics finish_but_last();
  /// What has been held since the step began, and what its evaluation has taken, after its end too, counts for it.
  void count_evaluation(StepMetrics& metrics);
  void report(const StepMetrics& metrics);
  /// On the way out with an error: reports what is done, whatever else fails.
  void finish_quietly() noexcept;
  /// The settled steps; also what evaluations and saves pause.
  RunClock& clock() { return clock_; }
  const TrainSummary& summary() const { return summary_; }
  /// The first step that is known to have diverged by the rule.
  const std::optional<Divergence>& diverged() const { return diverged_; }
  /// After finish(): the run goes on from an earlier step, as if it had not diverged.
  void roll_back();
  /// What a log of the steps to come goes on from: of a resumed run, where the losses are none of its own, or of
  /// another group of ranks (run_record.h).
  struct History {
    std::optional<double> first_loss{}, val_loss{};
    std::vector<double> last_losses{};
    std::int64_t skipped_steps = 0, rollbacks = 0;
    DivergenceWatch::History watch{};
    static constexpr AttrField fields[] = {attr<&History::first_loss>("first_loss").optional(),
                                           attr<&History::val_loss>("val_loss").optional(),
                                           attr<&History::last_losses>("last_losses"),
                                           attr<&History::skipped_steps>("skipped_steps"),
                                           attr<&History::rollbacks>("rollbacks"),
                                           attr<&History::watch>("watch")};
  };
  History history() const;
  void go_on_from(History history);
  /// An evaluation of the last step of an earlier log.
  void note_val_loss(double loss) { summary_.val_loss = loss; }

 private:
  struct Begun {
    CommCounts counts{};
    CommTimes times{};
    bool is_settled = false;
    bool is_beside_another = false;  ///< the step before had not arrived
  };
  void report_done();
  void arrived(StepMetrics metrics, const Begun& begun, std::span<const double> values);

  ProcessGroup& group_;
  Accounting& memory_;
  const std::int64_t first_step_;
  const Observer& observe_;
  TrainSummary summary_;
  DivergenceWatch watch_;
  std::optional<Divergence> diverged_;
  std::vector<double> last_losses_;
  bool has_first_loss_ = false;  // of an earlier log
  Begun begun_;
  RunClock clock_;
  const double seconds_at_peak_;
  std::int64_t num_begun_ = 0;
  PartSeconds counted_{};    // that lines have
  CommTimes arrived_times_;  // at the last arrival
  HostReads reads_;
  std::deque<StepMetrics> done_;  // arrived, not reported
};

}  // namespace sherd::train
