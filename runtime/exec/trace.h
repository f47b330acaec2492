#pragma once
// What one rank did and when, kept in memory until it is written out (trace_json.h).
//
//   Trace trace;
//   {
//     const Trace::Recording recording(trace);
//     train();
//   }
//   file << trace_file({trace_events(trace, 0)}, {});
//
// Only the rank's own thread writes here, into buffers of a fixed size whose pages were touched before: a recorded step
// allocates nothing, takes no lock and faults no page. Nothing is kept of modules: their nesting follows from the paths
// of the ops.
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "runtime/exec/context.h"
#include "runtime/tensor/for_scope.h"
#include "runtime/tensor/no_copy.h"

namespace sherd {

enum class SpanKind : std::uint8_t {
  op,    ///< one row of the op table, with its kernel
  wait,  ///< the rank's thread waits for other ranks: exposed communication
  work,  ///< an item of a queue
  part,  ///< anything else that has a name: a step, an evaluation
};

/// All waits have one name, hence one colour; what is waited for is their detail.
inline constexpr std::string_view kWaitName = "wait";

/// Times are nanoseconds of CLOCK_MONOTONIC, one clock for all processes of a host.
struct Span {
  std::int64_t start = 0, end = 0;
  std::string_view name;                ///< of an op, a literal, or interned
  const std::string* module = nullptr;  ///< path of the module it ran for
  const std::string* detail = nullptr;  ///< shapes, or what is waited for; interned
  std::int64_t bytes = 0;               ///< moved by a collective
  std::uint64_t flow = 0;               ///< names this piece of work to its consumers (see Trace::consume); 0: none
  std::uint32_t page_faults = 0;        ///< minor ones, of the rank's thread
  std::uint8_t track = 0;
  SpanKind kind = SpanKind::part;
  StepPhase phase = StepPhase::forward;
};

/// The record of one rank. Bounded: what comes after a full buffer is counted and dropped.
class Trace : NoCopy {
 public:
  static constexpr std::size_t kMaxSpans = std::size_t{1} << 17;  ///< with memory samples 24 MB
  explicit Trace(std::size_t max_spans = kMaxSpans);

  /// The rank's thread writes into `trace` for a scope.
  class Recording {
   public:
    explicit Recording(Trace& trace) : scope_(&RankContext::current().trace, &trace) {}

   private:
    const ForScope<Trace*> scope_;
  };

  /// An op's span ends when its device has run it, so it says what the op takes there and not what it takes to queue.
  /// Nothing overlaps any more.
  bool waits_for_devices = false;

  static std::int64_t now();
  /// Minor page faults of the calling thread since it began.
  static std::int64_t page_faults();

  /// Track 0 is the rank's thread, "compute"; others are queues. The same name gives the same track.
  std::uint8_t track(std::string_view name);
  const std::string* intern(std::string_view text);
  /// The text kept under `key`; made by `make` the first time.
  template <class Make>
  const std::string* intern(std::uint64_t key, const Make& make) {
    const std::string*& text = by_key_[key];
    if (!text) text = intern(make());
    return text;
  }

  void add(const Span& span);
  /// The result of the work whose span has this `flow` is used now, for the first time as far as the caller knows: an
  /// arrow leads from it to the span of compute that is open now.
  void consume(std::uint64_t flow);
  /// Bytes in use, by category; kept if they differ from the sample before.
  void sample_memory(const CategoryBytes& bytes) { sample_memory(bytes, now()); }
  void sample_memory(const CategoryBytes& bytes, std::int64_t time);
  /// A value of the counter "`name` `series`" (both literals) from `time` on.
  void count(std::string_view name, std::string_view series, std::int64_t time, std::int64_t value);
  /// Forgets what was recorded, keeps names and memory.
  void clear();

  struct Consumed {
    std::int64_t time;
    std::uint64_t flow;
  };
  struct MemorySample {
    std::int64_t time;
    CategoryBytes bytes;
  };
  struct Count {
    std::string_view name, series;
    std::int64_t time, value;
  };
  template <class T>
  struct Buffer {
    explicit Buffer(std::size_t limit) : items(limit) {}  // writes every page
    std::vector<T> items;
    std::size_t used = 0;
    const T* begin() const { return items.data(); }
    const T* end() const { return items.data() + used; }
  };
  const std::vector<std::string>& tracks() const { return tracks_; }
  const Buffer<Span>& spans() const { return spans_; }
  const Buffer<Consumed>& consumed() const { return consumed_; }
  const Buffer<MemorySample>& memory() const { return memory_; }
  const Buffer<Count>& counts() const { return counts_; }
  std::int64_t dropped() const { return dropped_; }
  std::size_t max_spans() const { return spans_.items.size(); }

 private:
  template <class T>
  bool push(Buffer<T>& buffer, const T& item);

  std::vector<std::string> tracks_{"compute"};
  Buffer<Span> spans_;
  Buffer<Consumed> consumed_;
  Buffer<MemorySample> memory_;
  Buffer<Count> counts_;
  std::deque<std::string> texts_;
  std::unordered_map<std::string_view, const std::string*> by_text_;
  std::unordered_map<std::uint64_t, const std::string*> by_key_;
  std::int64_t dropped_ = 0;
  friend class TraceSpan;
  bool is_waiting_ = false;  // a span of a wait is open
};

/// A span from construction to destruction on the rank's thread, also if that is by an exception. Nothing while the
/// thread records no trace, or is not a rank's own. A wait within a wait is part of the outer one: the time of all
/// waits is the sum of their spans.
class TraceSpan : NoCopy {
 public:
  /// `name` is a literal, the name of an op, or interned in the trace.
  explicit TraceSpan(std::string_view name, SpanKind kind = SpanKind::part, std::int64_t bytes = 0) {
    const RankContext* context = RankContext::current_or_null();
    if (context && context->trace) [[unlikely]]
      open(*context, name, kind, bytes);
  }
  ~TraceSpan() {
    if (trace_) [[unlikely]]
      close();
  }
  /// Null if nothing is recorded.
  Trace* trace() const { return trace_; }
  void set_detail(const std::string* interned) { span_.detail = interned; }

 private:
  void open(const RankContext& context, std::string_view name, SpanKind kind, std::int64_t bytes);
  void close();
  Trace* trace_ = nullptr;
  Span span_;
};

}  // namespace sherd
