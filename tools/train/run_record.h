#pragma once
// What a run knows of itself beside its training state, for ranks that go on with it in another group.
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tools/train/step_log.h"

namespace sherd {

struct RunRecord {
  std::int64_t first_step = 0;  ///< updates made before the run
  std::string run, job;         ///< as saves name them
  std::string save_folder;      ///< FolderLock::identity()
  std::string skipped_batches;  ///< SkippedBatches::text()
  bool replaces_saves = false;
  double seconds_since_save = 0;
  /// What follows the last step, its evaluation or its save, has been left, or may have.
  bool is_step_open = false;
  bool owes_save = false;  ///< one was asked for, or not written to its end
  std::string last_line;   ///< of the metrics file; empty before the first step
  StepLog::History log{};
  std::vector<int> replicas{};  ///< of the group
  SurvivalCounts counts{};
  std::optional<StepMetrics::Regroup> regroup{};  ///< that no step has told of yet

  static const AttrField fields[14];
};

/// One line. Numbers keep their bits, NaN and infinities too.
std::string to_text(const RunRecord& record);
/// Error for text that is none.
RunRecord run_record_from_text(const std::string& text);

}  // namespace sherd
