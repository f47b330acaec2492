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
/// From when on a missing sign is worth a word.
inline std::chrono::nanoseconds quiet_after(std::chrono::nanoseconds silence) { return 4 * beat_interval(silence); }

/// What a rank's process tells of itself, in its cell of the root's channel 0. Its heartbeat writes it, a thread that
/// goes on while the rank computes and stops when the process does. Times are those of the host's steady clock, which
/// all ranks share. Zero where ranks are threads: they cannot stop apart.
struct alignas(64) LifeCell {
  std::atomic<std::int64_t> beat{0};              // the last sign of life
  std::atomic<std::int64_t> revived{0};           // when it began to give signs, or went on after a pause
  std::atomic<std::int64_t> kernel_since{0};      // 0: between kernels. Later than the truth by a beat at most
  std::atomic<std::uint32_t> waits_for_queue{0};  // whether the rank's thread waits for one of its queues
  SharedText<48> kernel;                          // name of the row
  SharedText<48> stage;                           // of the program: "start-up"; empty in training steps
};

/// From a rank that is waited for: how long there has been no sign of life. Counts from the last sign or from the
/// beginning of the wait, whichever was later. Nothing is known while the waiting rank's own heart does not beat: a job
/// that is stopped and goes on as a whole (Ctrl-Z, a suspended batch job) has missed nobody, so its pause counts for
/// none of its waits.
struct Silence {
  using Time = std::chrono::nanoseconds;
  Time now, waiting_since;
  Time own_beat, own_revived;
  /// That is how long a heart may be late.
  Time patience;

  bool is_known() const { return now - own_beat < patience; }
  /// Since when this rank waits and has been running all the time.
  Time awake_since() const { return std::max(waiting_since, own_revived); }
  std::optional<Time> of(Time peer_beat) const {
    if (peer_beat == Time(0) || !is_known()) return std::nullopt;
    return now - std::max(peer_beat, awake_since());
  }
};

}  // namespace sherd::comm
