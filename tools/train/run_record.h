#pragma once
// What a run knows of itself beside its training state: for its saves, and for ranks that go on with it in another
// group.
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "nn/checkpoint/format/manifest.h"
#include "tools/train/skipped_batches.h"
#include "tools/train/step_log.h"

namespace sherd::train {

/// Where a run stands.
struct RunState {
  std::int64_t updates = 0;  ///< made in all
  SkippedBatches skipped{};
  StepLog::History log{};  ///< of steps before this run, as of its last save, or its end
  /// The metrics line of the last step, of an earlier group too; empty before the first step.
  std::string last_line{};
  /// The metrics line of the step whose evaluation is owed: a signal has stopped the run in it. Empty: none is.
  std::string owed_line{};
  bool is_step_open = false;  ///< what follows the last step, its evaluation or its save, is to be done yet
  bool owes_save = false;     ///< one was asked for, or not written to its end

  static const AttrField fields[7];
};

/// How saves of the run name it.
struct SaveNames {
  std::string run{};     ///< kept by who resumes
  std::string job{};     ///< of the launch (restart.h); empty without one
  std::string folder{};  ///< FolderLock::identity() when the run claimed it
  static constexpr AttrField fields[] = {attr<&SaveNames::run>("run"), attr<&SaveNames::job>("job"),
                                         attr<&SaveNames::folder>("folder")};
};

struct RunRecord {
  std::int64_t first_step = 0;  ///< updates made before the run
  RunState state{};
  SaveNames saves{};
  bool replaces_saves = false;
  double seconds_since_save = 0;
  std::vector<int> replicas{};  ///< of the group
  SurvivalCounts counts{};
  std::optional<StepMetrics::Regroup> regroup{};  ///< that no step has told of yet

  static const AttrField fields[8];
};

/// One line. Numbers keep their bits, infinities too.
std::string to_text(const RunRecord& record);
/// Error for text that is none.
RunRecord run_record_from_text(const std::string& text);

/// What a save has of it, beside the number of updates. `counts_skips`: no loss scaler has them in its own state.
void note_state(ckpt::Manifest& manifest, const RunState& state, bool counts_skips);
/// The state as of that save; Error naming `source` for what cannot be read.
RunState state_of(const ckpt::Manifest& manifest, const std::string& source);

}  // namespace sherd::train
