#pragma once
// A point in a stream's work. Storages carry one while a stream uses their bytes (Storage::lend), so users never see
// it.
#include <cstdint>
#include <string_view>
#include <utility>

namespace sherd {

class Stream;

/// What the streams of a rank are for. Each has a channel of its own in every process group, so that collectives of
/// different streams need not come in one order on all ranks.
enum class StreamKind : std::uint8_t { all_gather, reduce_scatter, collective };
inline constexpr int kNumStreams = 3;
std::string_view name(StreamKind kind);
/// The channel of a process group that work of this stream uses; channel 0 is the rank's thread's.
constexpr int channel_of(StreamKind kind) { return 1 + static_cast<int>(kind); }

/// Reached once the stream has finished everything submitted up to it. Copies cheaply; outlives the stream.
class Event {
 public:
  Event() = default;  ///< of no stream: reached
  Event(Stream* stream, std::uint64_t sequence);
  Event(const Event& other) : Event(other.stream_, other.sequence_) {}
  Event(Event&& other) noexcept
      : stream_(std::exchange(other.stream_, nullptr)), sequence_(std::exchange(other.sequence_, 0)) {}
  Event& operator=(Event other) noexcept {
    std::swap(stream_, other.stream_);
    std::swap(sequence_, other.sequence_);
    return *this;
  }
  ~Event() {
    if (stream_) drop();
  }

  Stream* stream() const { return stream_; }
  std::uint64_t sequence() const { return sequence_; }
  /// Names a piece of work in traces, where arrows lead from it to its consumer.
  static constexpr std::uint64_t flow(StreamKind kind, std::uint64_t sequence) {
    return sequence * kNumStreams + static_cast<std::uint64_t>(kind);
  }
  bool is_reached() const;
  /// Blocks until it is reached. On the thread that submits to the stream: runs work inline that the stream has not
  /// started, and lets go of what finished work held. Rethrows what failed at or before it.
  void wait() const;
  /// As wait(), for the first use of what was written: traces lead an arrow here.
  void consume() const;
  /// As wait(), but drops errors: nobody will look at the result.
  void settle() const noexcept;

 private:
  void drop();
  Stream* stream_ = nullptr;  // counted
  std::uint64_t sequence_ = 0;
};

}  // namespace sherd
