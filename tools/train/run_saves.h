#pragma once
// The saves of a run: whose folder it is, when one is due, and how it is written.
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "nn/checkpoint/format/folder_lock.h"
#include "nn/checkpoint/save/async_saver.h"
#include "nn/checkpoint/training_state.h"
#include "runtime/comm/group/process_group.h"
#include "tools/train/config.h"
#include "tools/train/run_record.h"

namespace sherd::train {

class RunSaves {
 public:
  /// Takes a resolved config; both outlive it.
  RunSaves(const TrainConfig& config, ProcessGroup& group);

  /// Before anything is computed: a run that could not save, or would remove what another one has saved, does not
  /// start. `resumed` is null in a new run. On rank 0. Errors of usage, and of the file system.
  void claim(const ckpt::CheckpointReader* resumed);
  /// The same of a group that goes on after the rank that had the lock was killed, which takes a moment.
  void claim_after_another_rank();
  /// Rank 0 has made up the names of the run, and may be lost. Collective.
  void share_names();
  void take_over(const RunRecord& record);
  void note(RunRecord& record) const;

  /// After rank 0 has claimed it. Collective. Error, on every rank, if a rank of another host has another folder of
  /// that name.
  void check_all_see_it();

  /// Takes the memory that saves beside the steps need. Collective.
  void prepare(const std::vector<nn::StateEntry>& state);
  /// Starts or makes a save; `manifest` lacks the names of run and job. Collective. Throws Error naming the file, on
  /// every rank.
  void save(ckpt::Manifest manifest, const std::vector<nn::StateEntry>& state);
  /// Looks at a save that is being written. Collective.
  void poll();
  /// Waits for it. Collective.
  void finish();

  bool is_in_flight() const { return saver_ && saver_->is_in_flight(); }
  /// This rank's, of saves beside the steps.
  std::optional<nn::AsyncSaver::Counts> counts() const {
    return saver_ ? std::optional(saver_->counts()) : std::nullopt;
  }
  bool are_due_by_time() const { return !config_.save.empty() && config_.save_minutes > 0; }
  bool is_time() const;
  /// The clock of config.save_minutes begins.
  void begin_clock() { saved_at_ = std::chrono::steady_clock::now(); }
  /// Whether there is no save of this run after `step` steps yet. On rank 0.
  bool lacks(std::int64_t step) const;

 private:
  void tell_launcher();

  const TrainConfig& config_;
  ProcessGroup& group_;
  std::optional<ckpt::FolderLock> lock_;  // rank 0's
  SaveNames names_;                       // rank 0's
  bool has_told_ = false;                 // rank 0's: the launcher knows that there is a save
  ckpt::Retention retention_;
  std::optional<nn::AsyncSaver> saver_;             // config.save_async
  std::chrono::steady_clock::time_point saved_at_;  // or when the run began
};

}  // namespace sherd::train
