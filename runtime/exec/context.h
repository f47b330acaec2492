#pragma once
// What one rank's thread carries: its memory, its random state, its modes, and what higher layers keep per rank. Ranks
// may be threads, so nothing of this is process-wide. Kernels never see it; they get an Exec.
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_set>
#include <vector>

#include "runtime/exec/backend.h"
#include "runtime/exec/rank_register.h"
#include "runtime/memory/event.h"
#include "runtime/memory/rank_memory.h"
#include "runtime/tensor/for_scope.h"
#include "runtime/tensor/intrusive.h"

namespace sherd {

class CaptureSink;
class HazardChecker;
class MemoryLog;
class TimelineRecording;
class Trace;

/// Which part of a training step runs; traces group ops by it.
enum class StepPhase : std::uint8_t { forward, backward, optimizer };
std::string_view name(StepPhase phase);

/// Thread-local state of one rank. The first thread that asks without having one (a plain program's main
/// thread) is given a default context; any other thread must open a RankScope, or current() throws.
class RankContext final : public RankMemory {
 public:
  explicit RankContext(RankOptions options = {});
  ~RankContext();

  // Every RankMemory is one of these.
  static RankContext& current() { return static_cast<RankContext&>(RankMemory::current()); }
  static RankContext* current_or_null() { return static_cast<RankContext*>(RankMemory::current_or_null()); }

  /// This rank's use of a device, opened at first use. Throws Error, saying why, if there is no such device, or if
  /// this rank is a ghost.
  DeviceContext& device(Device device);
  /// The devices opened so far.
  const std::vector<std::unique_ptr<DeviceContext>>& devices() const { return devices_; }

  /// What a higher layer keeps per rank: a T of this context, made at first use by its default constructor and
  /// destroyed at the end of the rank's scope, the youngest first. One T belongs to one library.
  template <class T>
  T& state() {
    static const std::size_t index = next_state_index();
    if (index >= states_.size() || !states_[index]) [[unlikely]]
      keep_state(index, {new T(), [](void* state) { delete static_cast<T*>(state); }});
    return *static_cast<T*>(states_[index].get());
  }

  // Modes, changed through RAII guards only.
  bool grad_enabled = true;
  CaptureSink* capture = nullptr;
  StepPhase phase = StepPhase::forward;
  /// Where this thread writes down what it does, or null; see trace.h.
  Trace* trace = nullptr;
  /// Writes down what takes memory, or null; see memory_log.h.
  MemoryLog* memory_log = nullptr;
  /// Writes down what a ghost does, or null; see timeline_recording.h.
  TimelineRecording* timeline = nullptr;

  /// Path of the module whose forward runs now; the strings live as long as the context.
  const std::string* module_path = nullptr;
  const std::string* intern(std::string_view text);
  /// "rank 3" or "rank 3 (dp 3)"; empty on one rank. Error messages end with it.
  std::string rank_text;
  std::int64_t step = -1;

  /// Ranks that compute on this host. Waits spin only where they leave cores free; set by set_world_group().
  int num_ranks_here = 1;

  /// This rank's queue of that name ("gather", "reduce", "collective", ...) on the host or a device, made at first use.
  /// "compute" is the device's kernels. Call world_group() or set_world_group() before. Error if there is no such
  /// device, or for "compute" on the host, which is the rank's thread.
  Queue& queue(std::string_view name, Device device = Device::cpu());
  /// Null if there is none yet.
  Queue* find_queue(std::string_view name, Device device) const;
  /// What the device's compute does from now on comes after all that was submitted to other queues of it: for work that
  /// touches bytes without asking their storages.
  void join_queues(Device device);
  /// Waits for everything in flight. Errors of it are dropped, and queues that failed run again.
  void drain_queues() noexcept;
  /// Seconds that this thread has waited for queues or done their work inline; and whether it does now.
  double waited_seconds = 0;
  double waited_skew_seconds = 0;  ///< of these, until the last rank had come
  bool is_waiting = false;
  /// The active check of what orders accesses to memory, or null; see hazards.h.
  HazardChecker* hazards = nullptr;

  /// What is made on this rank holds it and counts there what guards of recordings read beside arguments: a slot's
  /// tensor or gradient, whether it wants one, a setting; the end of a slot or a mesh. See compile/run/guards.h.
  const std::shared_ptr<RankRegister> rank_register = std::make_shared<RankRegister>(this);

 private:
  friend class RankScope;
  friend class RankMemory;
  using State = std::unique_ptr<void, void (*)(void*)>;
  static std::size_t next_state_index();
  void keep_state(std::size_t index, State state);
  Allocator& device_allocator(Device device) override;
  void close_queues() noexcept;
  void end_states() noexcept;

  std::unordered_set<std::string> interned_;
  std::vector<Ref<Queue>> queues_;
  std::vector<std::unique_ptr<DeviceContext>> devices_;
  std::vector<State> states_;      // by index
  std::vector<std::size_t> kept_;  // indices in the order of making
  const int exceptions_at_start_;
};

/// Names the part of the step that runs for a scope.
class PhaseScope {
 public:
  explicit PhaseScope(StepPhase phase) : scope_(&RankContext::current().phase, phase) {}

 private:
  const ForScope<StepPhase> scope_;
};

/// Makes a fresh context current on this thread for a scope: the body of a rank that is a thread, or of a ghost. Ghost
/// ranks wait for nobody, so that one thread can be all of a job's ranks, one after the other.
class RankScope : NoCopy {
 public:
  explicit RankScope(std::string rank_text = {}, RankOptions options = {});
  ~RankScope();
  RankContext& context() { return context_; }

 private:
  RankMemory* outer_;
  RankContext context_;
};

}  // namespace sherd
