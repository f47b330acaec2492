#pragma once
// Signs of life of ranks that are processes: from when to count the silence of a rank, and what it was doing.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>

#include "runtime/comm/board/shared_text.h"

namespace sherd::comm {

/// How often a rank gives a sign of life where it is given up after `silence` without one.
inline std::chrono::nanoseconds beat_interval(std::chrono::nanoseconds silence) {
  return std::clamp<std::chrono::nanoseconds>(silence / 8, std::chrono::milliseconds(10),
                                              std::chrono::milliseconds(500));
}
/// A sign that is missing for longer is worth a word.
inline std::chrono::nanoseconds quiet_after(std::chrono::nanoseconds silence) { return 4 * beat_interval(silence); }

/// A rank's process tells this of itself, in its cell of the root's lane 0. Its heartbeat writes it, a thread that goes
/// on while the rank computes and stops when the process does. Times are those of the host's steady clock, which
/// all ranks share. Zero where ranks are threads: they cannot stop apart.
struct alignas(64) LifeCell {
  std::atomic<std::int64_t> beat{0};       // the last sign of life
  std::atomic<std::int64_t> interval{0};   // between signs
  std::atomic<std::int64_t> lost{0};       // the time without signs when they should have come: pauses of the process
  std::atomic<std::int64_t> pause_end{0};  // of the last of these pauses
  std::atomic<std::int64_t> kernel_since{0};      // 0: between kernels. Later than the truth by a beat at most
  std::atomic<std::uint32_t> waits_for_queue{0};  // whether the rank's thread waits for one of its queues
  SharedText<48> kernel;                          // name of the row
  SharedText<48> stage;                           // of the program: "start-up"; empty in training steps
};

/// The silence that a wait may hold against others. The time in which this process itself was stopped, or starved,
/// counts for nobody: a job that is stopped and goes on as a whole (Ctrl-Z, a suspended batch job) has missed none.
/// While the own heart does not beat nothing is known.
struct Silence {
  using Time = std::chrono::nanoseconds;
  Time now, waiting_since;
  Time own_beat;   ///< 0: ranks give no signs
  Time lost;       ///< by this process since the wait began
  Time pause_end;  ///< of its last pause
  Time patience;   ///< how long a heart may be late

  bool is_known() const { return own_beat == Time(0) || now - own_beat < patience; }
  /// The time that has passed for this process: a pause counts from `begin` on at most, and not if it was over by then.
  Time since(Time begin) const {
    return std::max(now - begin - std::min(lost, std::max(pause_end - begin, Time(0))), Time(0));
  }
  Time waited() const { return since(waiting_since); }
  /// The silence of a rank that is waited for: since its last sign, or since the wait began if that was later.
  std::optional<Time> of(Time peer_beat) const {
    if (peer_beat == Time(0) || !is_known()) return std::nullopt;
    return since(std::max(peer_beat, waiting_since));
  }
};

}  // namespace sherd::comm
