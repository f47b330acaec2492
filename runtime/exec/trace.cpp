#include "runtime/exec/trace.h"

#include <ctime>
#include <utility>

#include <sys/resource.h>

#include "runtime/tensor/error.h"
#include "runtime/tensor/indices.h"

namespace sherd {

namespace {
// Names and texts that a trace of a usual size has room for without growing a table.
constexpr std::size_t kTexts = 4096;
}  // namespace

Trace::Trace(std::size_t max_spans)
    : spans_(max_spans), consumed_(max_spans / 8 + 1), memory_(max_spans), counts_(max_spans / 8 + 1) {
  check(max_spans > 0, "a trace needs room for at least one span");
  by_text_.reserve(kTexts);
  by_key_.reserve(kTexts);
}

std::int64_t Trace::now() {
  std::timespec t{};
  ::clock_gettime(CLOCK_MONOTONIC, &t);
  return std::int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec;
}

std::int64_t Trace::page_faults() {
  rusage usage{};
  ::getrusage(RUSAGE_THREAD, &usage);
  return usage.ru_minflt;
}

std::uint8_t Trace::track(std::string_view name) {
  for (const std::size_t i : indices(tracks_))
    if (tracks_[i] == name) return static_cast<std::uint8_t>(i);
  check(tracks_.size() < 256, "a trace has at most 256 tracks, \"{}\" would be one more", name);
  tracks_.emplace_back(name);
  return static_cast<std::uint8_t>(tracks_.size() - 1);
}

const std::string* Trace::intern(std::string_view text) {
  if (const auto found = by_text_.find(text); found != by_text_.end()) return found->second;
  const std::string* kept = &texts_.emplace_back(text);
  by_text_.emplace(*kept, kept);
  return kept;
}

template <class T>
bool Trace::push(Buffer<T>& buffer, const T& item) {
  if (buffer.used == buffer.items.size()) [[unlikely]]
    return false;
  buffer.items[buffer.used++] = item;
  return true;
}

void Trace::add(const Span& span) {
  if (!push(spans_, span)) ++dropped_;
}

void Trace::consume(std::uint64_t flow) { push(consumed_, {now(), flow}); }

void Trace::sample_memory(const CategoryBytes& bytes, std::int64_t time) {
  if (memory_.used > 0 && memory_.items[memory_.used - 1].bytes == bytes) return;
  push(memory_, {time, bytes});
}

void Trace::count(std::string_view name, std::string_view series, std::int64_t time, std::int64_t value) {
  push(counts_, {name, series, time, value});
}

void Trace::clear() {
  spans_.used = consumed_.used = memory_.used = counts_.used = 0;
  dropped_ = 0;
}

void TraceSpan::open(const RankContext& context, std::string_view name, SpanKind kind, std::int64_t bytes) {
  if (kind == SpanKind::wait && std::exchange(context.trace->is_waiting_, true)) return;
  trace_ = context.trace;
  span_.name = name;
  span_.kind = kind;
  span_.bytes = bytes;
  span_.module = context.module_path;
  span_.phase = context.phase;
  span_.page_faults = static_cast<std::uint32_t>(Trace::page_faults());
  span_.start = Trace::now();
}

void TraceSpan::close() {
  span_.end = Trace::now();
  span_.page_faults = static_cast<std::uint32_t>(Trace::page_faults()) - span_.page_faults;
  if (span_.kind == SpanKind::wait) trace_->is_waiting_ = false;
  trace_->add(span_);
}

}  // namespace sherd
