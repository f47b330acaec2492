#pragma once
// Saves that are written while training goes on.
//
//   rank's thread  step 100 | start | step 101 | poll | step 102 | poll | step 103 | poll | ...
//   queue "save"            [ write this rank's file, fsync .......]           [ rank 0: commit ]
//                                                            all ranks have written: entries -> rank 0
//
// Ranks agree at step boundaries, on their own threads: whether all have written, and whether all of it went well. So
// the queue's work waits for no other rank, and a failure is thrown by all ranks at the same step. It is a queue of its
// own, not "disk", where what a step has offloaded would wait behind the save.
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "nn/checkpoint/save/snapshot.h"
#include "nn/checkpoint/training_state.h"
#include "runtime/memory/event.h"
#include "runtime/tensor/no_copy.h"

namespace sherd::nn {

inline constexpr std::string_view kSaveQueue = "save";

class AsyncSaver : NoCopy {
 public:
  /// Saves on the ranks of `group`, which outlives the saver.
  explicit AsyncSaver(ProcessGroup& group);
  /// Gives up a save in flight: only poll() and finish() commit it. Waits until this rank no longer writes.
  ~AsyncSaver();

  /// Takes the memory for copies of what this rank saves of `state`, in the account "communication", and keeps it: so a
  /// run that has too little ends before it trains. Nothing for what lies on a device or in a file. Local. OutOfMemory
  /// says what it was for.
  void reserve(const std::vector<StateEntry>& state);

  /// As save_checkpoint(), of the values that the state has now, but returns when the work is submitted; what lies on a
  /// device is copied to the host first. A save that is in flight is finished before. Collective. Throws Error on every
  /// rank as save_checkpoint() does for what is wrong with the state, and if the save before has failed.
  void start(const std::string& dir, ckpt::Manifest manifest, const std::vector<StateEntry>& state,
             const ckpt::Retention& retention = {});
  /// The same on all ranks.
  bool is_in_flight() const { return flight_ != nullptr; }
  /// At a step boundary: one small all-reduce while a save is in flight, nothing else. Throws Error, on every rank at
  /// the same call, if the save has failed on any rank: disk full, a folder that cannot be written, a mount that is
  /// gone. The saves before it stay. After a CommError ranks may differ in what they know of the save: reset().
  /// Collective; waits for no disk.
  void poll();
  /// Beside reset_after_error(), on all ranks: gives up a save in flight. Local.
  void reset() noexcept { give_up(); }
  /// Waits for the save in flight and commits it. Collective. Throws as poll().
  void finish();

  /// This rank's, of all saves so far.
  struct Counts {
    std::int64_t saves = 0;         ///< committed
    std::int64_t bytes = 0;         ///< of pieces written, or being written
    std::int64_t copied_bytes = 0;  ///< of these, before they were changed
    double copy_seconds = 0;        ///< of the rank's thread
    double waited_seconds = 0;      ///< in finish(), also for start()
  };
  Counts counts() const;

 private:
  struct Flight;
  std::vector<ckpt::Snapshot::Value> values_to_save(const std::vector<StateEntry>& state,
                                                    std::vector<ckpt::Piece>& pieces) const;
  void submit(Flight& flight, const std::vector<StateEntry>& state);
  void check_outcome();
  void commit_together();
  void give_up() noexcept;
  void give_up_together() noexcept;
  bool has_saves_to_keep();
  void count_copies(Counts& counts) const;
  void end() noexcept;

  ProcessGroup& group_;
  Tensor kept_;
  std::unique_ptr<Flight> flight_;
  Counts counts_;
};

}  // namespace sherd::nn
