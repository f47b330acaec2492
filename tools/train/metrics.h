#pragma once
// The metrics file: JSON lines, the first about the run, then one per step.
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "compile/compile.h"
#include "nn/checkpoint/save/snapshot.h"
#include "runtime/exec/step_clock.h"
#include "runtime/memory/accounting.h"
#include "runtime/op/attrs/attr_list.h"
#include "tools/train/config.h"
#include "tools/train/output_file.h"
#include "tools/train/run_times.h"

namespace sherd::train {

/// What one step did, as rank 0 sees it.
struct StepMetrics {
  std::int64_t step = 0;  ///< counted from 1: the number of updates made
  double loss = 0;        ///< mean over the global batch, nats per token
  double lr = 0;
  double grad_norm = 0;     ///< before clipping
  std::int64_t tokens = 0;  ///< of this step, over all ranks
  double tokens_per_second = 0;
  double step_seconds = 0;
  PartSeconds seconds{};             ///< by part; all but evaluation and save add up to step_seconds
  std::optional<double> mfu{};       ///< FLOPs of the model over what the ranks' peak would have made; if that is known
  double exposed_comm_seconds = 0;   ///< the rank's thread waited for collectives: until all ranks had come, and then
  double exposed_skew_seconds = 0;   ///< for their transfers; this is the first part
  std::optional<double> loss_scale;  ///< of this step, if the loss is scaled
  std::int64_t skipped_steps = 0;    ///< without an update, this one and those before a resume included
  CategoryBytes memory_bytes{};      ///< the most of each category within the step and its evaluation
  std::int64_t memory_peak_bytes = 0;  ///< the most of all together; moments differ
  std::optional<double> val_loss;      ///< of steps with an evaluation
  /// Where updates are to be captured: whether this one was a replay, and why: "recorded: there is no graph yet".
  struct Captured {
    bool is_replay = false;
    std::string why{};
  };
  std::optional<Captured> captured{};
  /// What an update was predicted to hold and take, where it has a memory budget; in the last step.
  std::optional<CompiledStep::Predicted> predicted{};
  /// Cost to this rank's thread, within the step, of a save that was written beside it (save_async).
  std::optional<ckpt::SnapshotCost> save;
  std::optional<RunTimes> times;  ///< of the settled steps of the run so far, at an evaluation
  /// Replicas that took part, if not all did, in a run that outlives replicas.
  std::vector<int> replicas{};
  /// Change of replicas before the first step of a new group of ranks, and how long the run stood still, a step that
  /// was left and made again included.
  struct Regroup {
    std::vector<int> lost{}, returned{};  ///< replicas
    double seconds = 0;
    static constexpr AttrField fields[] = {attr<&Regroup::lost>("lost"), attr<&Regroup::returned>("returned"),
                                           attr<&Regroup::seconds>("seconds")};
  };
  std::optional<Regroup> regroup{};
};

/// {"config": {...}, "seed", "ranks", "version"}; keys with a section are nested objects. One line, no newline.
std::string header_line(const TrainConfig& config, int ranks);
/// {"step", "loss", ..., "step_seconds", "seconds": {part: seconds}, "mfu", "exposed_comm_seconds" and its parts
/// "exposed_transfer_seconds" and "exposed_skew_seconds", "memory_bytes": {category: bytes}, "loss_scale",
/// "skipped_steps", "captured", "why", "predicted": {"step_seconds", "memory_peak_bytes", "memory_bytes": {category:
/// bytes}, "notes"}, "val_loss", "save": {"copied_bytes", "seconds"}, "host": {"cpu": [per rank], "minor_faults",
/// "major_faults", "involuntary_switches", "throttled", "swap_in", "cpus", "online", "threads"}, "run_times": {"steps",
/// "step_seconds":
/// {"p50", "p95", "max", "mad"}, "ranks": [{"rank", "host", "calls", "median_lateness_seconds"}], "stragglers":
/// [rank], "units": [{"unit",
/// "gather": {"calls", "seconds", "exposed_transfer_seconds", "exposed_skew_seconds"}, "reduce": {...}}]},
/// "replicas": [replica], "regroup": {"lost": [replica], "returned": [replica], "seconds"}}; from
/// loss_scale on where there are such; seconds of a unit are per step.
/// Numbers read back to the same bits; NaN and infinity, which JSON lacks, are null.
std::string step_line(const StepMetrics& metrics);
/// Such a line with the loss of an evaluation that was made later.
std::string with_val_loss(const std::string& step_line, double val_loss);

/// What every header begins with.
inline constexpr std::string_view kMetricsBeginning = R"({"config":)";

/// Writes lines to a file, each at once, so that the file can be followed and survives a crash.
class MetricsFile {
 public:
  /// A file of a run that starts anew (`first_step` 0): an existing one is replaced and begins with `header`. What is
  /// no metrics file is ExitError of kUsage (check_replaceable()). A run that resumes after step `first_step` continues
  /// its file: lines of later steps, which a killed run may have left, are dropped, so that the file is that of an
  /// uninterrupted run. Without such a file it begins like a new one. A pipe may stand in place of a file, if somebody
  /// reads it. Throws Error naming the file, also while another process writes it: before a line of that is touched.
  MetricsFile(std::string path, const std::string& header, std::int64_t first_step);
  /// Throws Error naming the file if it cannot be written (disk full).
  void write(const std::string& line);

 private:
  std::string path_;
  OutputFile file_;
};

}  // namespace sherd::train
