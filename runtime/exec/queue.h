#pragma once
// Queues: work of one rank that runs beside its thread, in the order it was submitted. They exist to hide
// communication and copies behind compute; compute itself stays on the rank's thread, or on its device's own queue.
//
//   rank's thread   submit(a) ... compute ... submit(b) ... compute ... reads a's bytes: waits for a
//   queue "gather"            a a a a a a a a a a             b b b b
//
// A queue of a device is the same over one of its streams: its work is issued at once and runs later, and waits between
// it and the device's compute are the device's own.
//
// Work borrows memory: the storages it uses are *lent* to the queue. Who then reads such a storage waits for the work
// that writes it, and who writes it waits for the work that uses it at all; nobody else ever has to wait, so work that
// reads delays no reader (Storage::read, Storage::write).
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "runtime/memory/event.h"
#include "runtime/memory/storage.h"
#include "runtime/tensor/device.h"
#include "runtime/tensor/intrusive.h"

namespace sherd {

class RankGrid;
enum class Movement : std::uint8_t;

/// Bytes that work uses. What it reads stays alive until the submitting thread has waited for the work; whoever drops
/// what it writes waits.
struct Loan {
  Ref<Storage> storage;
  bool writes = false;
};

/// What work moves between the ranks of a group, for who prices it (timeline.h). Both are borrowed until submit()
/// returns.
struct WireUse {
  Movement movement;
  std::string_view group;  ///< its name
  const RankGrid* grid;    ///< null of ranks that are no grid of the job's
};

struct QueueWork {
  static constexpr std::size_t kUnlimited = std::numeric_limits<std::size_t>::max();
  std::string_view name;       ///< a literal or the name of an op: "unshard"
  std::string_view subject{};  ///< what it acts on: "blocks.3"; copied
  std::int64_t bytes = 0;      ///< moved, for traces and prices
  std::optional<WireUse> wire{};
  /// Uses addresses taken before, no tensors, allocator or rank context. Of a host queue: runs on any thread, later. Of
  /// a device queue: runs on the rank's thread inside of submit(), and puts what is to be done on the queue's stream.
  std::function<void()> run{};
  std::span<const Loan> loans{};  ///< all bytes that `run` touches
  /// Makes a `run` that waits for other ranks raise; for a rank that ends by an exception.
  std::function<void(std::string_view reason)> abort{};
  /// First waits until fewer than this many items hold their storages: of a device queue, the device's compute waits.
  std::size_t max_in_flight = kUnlimited;
  /// Splits work of a host queue into two short halves with a wait for other ranks between them; give both or none. If
  /// nothing is before the work, `begin` runs inside of submit(), and no thread is woken: `run`, the second half, is
  /// left to the thread that waits. Otherwise, and if `begin` throws, `run` is all of the work. `is_ready`: whether the
  /// second half would not wait.
  std::function<void()> begin{};
  std::function<bool()> is_ready{};
};

/// Queue of a device's kernels, in the order of the program. (The host's compute is the rank's thread.)
inline constexpr std::string_view kComputeQueue = "compute";

/// One queue of a rank, made by RankContext::queue() at first use. Only that rank's thread submits.
class Queue : public RefCounted {
 public:
  /// More than any rank makes.
  static constexpr int kMaxPerRank = 64;
  static void destroy(Queue* queue) { delete queue; }

  /// "gather", "reduce", ...: what it is for.
  const std::string& name() const { return name_; }
  /// Its place among the rank's queues, in the order of making.
  int index() const { return index_; }
  /// Where its work runs.
  Device device() const { return device_; }

  /// Queues work and lends it the storages; blocks only for max_in_flight of a host queue. The work starts after what
  /// was submitted here before and after work of other queues that conflicts with it: a reader after the last writer, a
  /// writer after all. On a ghost rank it never runs. Throws what failed there, or Error if an active hazard check
  /// finds a missing edge.
  virtual Event submit(QueueWork work) = 0;
  /// Work submitted from now on starts after `event`, of any queue of this rank. Does not block.
  virtual void wait(const Event& event) = 0;
  /// Reached when everything submitted so far is done.
  virtual Event record() = 0;
  /// Blocks until everything submitted is done. Drops errors.
  virtual void drain() noexcept = 0;
  /// Skips what has not started and aborts what runs, for a rank that does not come to what its peers wait for.
  virtual void abort(const std::string& reason) noexcept = 0;
  /// drain(). Nothing may be submitted afterwards.
  virtual void close() noexcept = 0;

 protected:
  Queue(std::string_view name, int index, Device device) : name_(name), index_(index), device_(device) {}
  virtual ~Queue() = default;

 private:
  friend class Event;
  friend class HostQueue;
  friend class DeviceQueue;
  virtual bool is_done(std::uint64_t sequence) const = 0;
  /// Blocks until is_done(sequence).
  virtual void await(std::uint64_t sequence) = 0;
  /// Throws what failed at or before `sequence` and has not been waited for.
  virtual void rethrow(std::uint64_t sequence) = 0;
  /// Somebody has waited and does not look at the result: new work runs again.
  virtual void forgive() noexcept = 0;

  const std::string name_;
  const int index_;
  const Device device_;
};

/// A stretch of time, in nanoseconds of the monotonic clock, in which a collective stood still on this rank because
/// another rank had not come to it yet.
struct Skew {
  std::int64_t from = 0, until = 0;
};

/// Told by a process group at the end of a call: kept with the item of a queue that the calling thread runs, if it
/// does, so that whoever waits for the item learns how much of the wait was for a rank that came late.
void note_skew(Skew skew);

/// Whether the calling thread runs an item of a host queue now.
bool is_running_work();

/// Seconds of RankContext::waited_seconds that passed in such stretches. Of the calling thread's rank.
double waited_skew_seconds();

}  // namespace sherd
