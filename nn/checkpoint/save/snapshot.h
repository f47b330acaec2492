#pragma once
// The values that tensors have at one moment, given out by a queue's thread while the program goes on to change them.
//
//   rank's thread    snapshot . step: reads a, b . . about to write a: copies the rest of a | writes a . .
//   queue "save"              | a a a . . . . . . . . . . . . . . . . . . . . . . . . . . . a' a' b b b |
//
// Nothing is copied that has been given out by the time it changes, and the rank's thread does not wait for the disk:
// what it is about to write is copied, or was given out. What lies in a file to begin with (offload) is not brought
// into memory: its writer, a queue as a rule, waits for the save. So does who writes bytes that another queue is still
// to write before.
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <span>
#include <unordered_map>
#include <vector>

#include "nn/checkpoint/format/rank_file.h"
#include "runtime/exec/queue.h"
#include "runtime/memory/offload_file.h"
#include "runtime/op/core/tensor.h"

namespace sherd::ckpt {

/// What a snapshot has cost the rank's thread.
struct SnapshotCost {
  std::int64_t copied_bytes = 0;  ///< before they were changed
  double seconds = 0;             ///< of copying
};

class Snapshot {
 public:
  /// A dense tensor of the host.
  struct Value {
    Tensor tensor;
    bool is_own = false;  ///< nobody else has its bytes, so they do not change
  };
  /// `kept` is memory for copies, u8[n] of the host with kept_bytes(values) at least, which nobody else uses meanwhile;
  /// Error if it is smaller.
  Snapshot(std::vector<Value> values, Tensor kept);
  static std::int64_t kept_bytes(std::span<const Value> values);

  /// All storages that may change, for reading: to be submitted with the work that gives.
  std::vector<Loan> loans() const;
  /// On one thread of a queue: hands the tensor's bytes over, in parts, in their order. Once for each tensor. Throws
  /// what `use` throws, and Error if a file cannot be read.
  void give(std::size_t tensor, const PieceBytes::Use& use);
  /// On that thread: nothing is given any more.
  void end() noexcept;
  /// From any thread: who gives gets an Error soon, for a save that nobody will finish.
  void cancel() noexcept { is_cancelled_.store(true, std::memory_order_relaxed); }
  /// On the rank's thread, before the storage's bytes change. See LetGo: false for bytes of a file that are
  /// not all given.
  bool let_go(const Storage& storage) noexcept;
  /// On the rank's thread.
  const SnapshotCost& cost() const { return cost_; }

 private:
  struct Part {
    Tensor values;
    const std::byte* source;  // in the values, until they are copied
    std::int64_t bytes;
    std::byte* kept;    // null: nothing is copied
    OffloadFile* file;  // that the bytes lie in
    std::mutex mutex;   // of the rest
    std::int64_t given = 0;
    bool is_copied = false;
  };
  bool let_go(Part& part);

  std::deque<Part> parts_;
  Tensor kept_;
  std::unordered_map<std::uint64_t, std::vector<Part*>> by_storage_;
  std::vector<std::byte> staging_;  // what is given of bytes that may change
  SnapshotCost cost_;
  std::atomic<bool> is_cancelled_{false};
};

}  // namespace sherd::ckpt
