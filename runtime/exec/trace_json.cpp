// Spans arrive in order of their ends, from one thread, so they nest. They are written as begin and end events rather
// than as complete ones: viewers read times as doubles of microseconds, and a child that then seems to end after its
// parent would be thrown away; the order of begins and ends survives any rounding.
#include "runtime/exec/trace_json.h"

#include <algorithm>
#include <iterator>
#include <unordered_map>

#include <fmt/format.h>

#include "runtime/tensor/indices.h"

namespace sherd {

namespace {

constexpr int kTracksPerRank = 256;  // thread ids are unique over all ranks

std::string quoted(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (static_cast<unsigned char>(c) < 0x20) out += fmt::format("\\u{:04x}", static_cast<int>(c));
    else out += c;
  }
  return out + '"';
}

class Args {
 public:
  void add(std::string_view key, std::string_view value) { add_raw(key, quoted(value)); }
  void add(std::string_view key, std::int64_t value) { add_raw(key, std::to_string(value)); }
  std::string text() const { return "{" + text_ + "}"; }

 private:
  void add_raw(std::string_view key, const std::string& value) {
    text_ += fmt::format("{}{}:{}", text_.empty() ? "" : ",", quoted(key), value);
  }
  std::string text_;
};

std::string_view category(SpanKind kind) {
  switch (kind) {
    case SpanKind::op: return "op";
    case SpanKind::wait: return "exposed communication";
    case SpanKind::work: return "queue";
    case SpanKind::part: break;
  }
  return "part";
}

// The spans to be open around an op: its phase, then every module down to its own. "blocks" holds the blocks and never
// runs, so a number belongs to the word before it.
using Chain = std::vector<std::string_view>;
void chain_of(const Span& span, Chain& chain) {
  chain.clear();
  const std::string_view path = span.module ? std::string_view(*span.module) : std::string_view();
  if (path.empty() && span.phase == StepPhase::forward) return;
  chain.push_back(name(span.phase));
  if (path.starts_with('(')) return;  // the root module, which has no path
  for (std::size_t dot = path.find('.'); !path.empty(); dot = path.find('.', dot + 1)) {
    const std::size_t end = std::min(dot, path.size());
    const bool before_number = end + 1 < path.size() && path[end + 1] >= '0' && path[end + 1] <= '9';
    if (!before_number) chain.push_back(path.substr(0, end));
    if (end == path.size()) return;
  }
}

/// Writes the events of one rank.
class Writer {
 public:
  Writer(const Trace& trace, int rank) : trace_(trace), pid_(rank + 1), rank_(rank) {}

  std::string text() {
    name_tracks();
    find_flows();
    for (const std::size_t track : indices(trace_.tracks())) write_track(track);
    write_counters();
    return std::move(out_);
  }

 private:
  struct Open {
    const Span* span;
    bool has_chain;  // modules are known from here on
  };
  struct Arrival {
    std::int64_t time;
    const Span* source;
  };

  int tid(std::size_t track) const { return rank_ * kTracksPerRank + static_cast<int>(track) + 1; }

  void event(std::string_view ph, std::size_t track, std::int64_t time, const std::string& rest = {}) {
    if (!out_.empty()) out_ += ",\n";
    fmt::format_to(std::back_inserter(out_), R"({{"ph":"{}","pid":{},"tid":{},"ts":{}.{:03}{}}})", ph, pid_, tid(track),
                   time / 1000, time % 1000, rest);
  }

  void metadata(std::string_view name, std::size_t track, std::string_view key, const std::string& value) {
    event("M", track, 0, fmt::format(R"(,"name":"{}","args":{{"{}":{}}})", name, key, value));
  }

  void name_tracks() {
    metadata("process_name", 0, "name", quoted(fmt::format("rank {}", rank_)));
    metadata("process_sort_index", 0, "sort_index", std::to_string(rank_));
    if (trace_.dropped() > 0)
      metadata(
          "process_labels", 0, "labels",
          quoted(fmt::format("{} spans dropped: a trace keeps {} per rank", trace_.dropped(), trace_.max_spans())));
    for (const std::size_t track : indices(trace_.tracks())) {
      metadata("thread_name", track, "name", quoted(trace_.tracks()[track]));
      metadata("thread_sort_index", track, "sort_index", std::to_string(track));
    }
  }

  // Only the first use of a piece of work gets an arrow.
  void find_flows() {
    std::unordered_map<std::uint64_t, const Span*> sources;
    for (const Span& span : trace_.spans())
      if (span.flow != 0 && span.track != 0) sources.emplace(span.flow, &span);
    for (const Trace::Consumed& consumed : trace_.consumed()) {
      const auto source = sources.find(consumed.flow);
      if (source == sources.end()) continue;
      if (consumed.time > source->second->start) arrivals_.push_back({consumed.time, source->second});
      sources.erase(source);
    }
  }

  void write_track(std::size_t track) {
    std::vector<const Span*> spans;
    for (const Span& span : trace_.spans())
      if (span.track == track) spans.push_back(&span);
    // An outer span is added after those within it.
    std::stable_sort(spans.begin(), spans.end(), [](const Span* a, const Span* b) {
      if (a->start != b->start) return a->start < b->start;
      return a->end != b->end ? a->end > b->end : a > b;
    });
    arrived_ = 0;
    for (const Span* span : spans) {
      close_until(track, span->start);
      open(track, *span);
    }
    close_until(track, INT64_MAX);
  }

  void close_until(std::size_t track, std::int64_t time) {
    while (!open_.empty() && open_.back().span->end <= time) {
      const Span& span = *open_.back().span;
      if (open_.size() == chain_depth_) close_chain(track, 0);
      leave(track, span.end, &span);
      open_.pop_back();
    }
    if (open_.empty() && time == INT64_MAX) close_chain(track, 0);
  }

  void open(std::size_t track, const Span& span) {
    bool has_chain = !open_.empty() && open_.back().has_chain;
    if (track == 0 && !has_chain) {
      chain_of(span, wanted_);
      if (chain_depth_ != open_.size()) close_chain(track, 0);
      std::size_t same = 0;
      while (same < std::min(chain_.size(), wanted_.size()) && chain_[same] == wanted_[same]) ++same;
      close_chain(track, same);
      chain_depth_ = open_.size();
      chain_end_ = span.end;
      for (; same < wanted_.size(); ++same) {
        enter(track, span.start, wanted_[same], "module", {});
        chain_.push_back(wanted_[same]);
      }
      has_chain = !wanted_.empty();
    }
    Args args;
    if (span.module) args.add("module", *span.module);
    if (span.detail) args.add(span.kind == SpanKind::op ? "inputs" : "for", *span.detail);
    if (span.bytes > 0) args.add("bytes", span.bytes);
    if (span.page_faults > 0) args.add("page_faults", span.page_faults);
    // A queue's track shows at a glance whose work ran.
    const bool labelled = span.kind == SpanKind::work && span.detail && !span.detail->empty();
    enter(track, span.start, labelled ? fmt::format("{} {}", span.name, *span.detail) : std::string(span.name),
          category(span.kind),
          (span.kind == SpanKind::wait ? R"(,"cname":"terrible","args":)" : R"(,"args":)") + args.text());
    open_.push_back({&span, has_chain});
  }

  void close_chain(std::size_t track, std::size_t keep) {
    for (; chain_.size() > keep; chain_.pop_back()) leave(track, chain_end_, nullptr);
  }

  void enter(std::size_t track, std::int64_t time, std::string_view name, std::string_view cat,
             const std::string& rest) {
    arrive_until(track, time);
    event("B", track, time, fmt::format(R"(,"name":{},"cat":"{}"{})", quoted(name), cat, rest));
    ++depth_;
  }

  void leave(std::size_t track, std::int64_t time, const Span* span) {
    arrive_until(track, time + 1);
    // An arrow leaves at the end of its work; readers drop one that arrives no later than it leaves.
    if (const auto landed = landed_.find(span); landed != landed_.end())
      arrow("s", track, std::min(time, landed->second - 1), span);
    event("E", track, time);
    --depth_;
  }

  // Arrows that end before `time`, in whatever is open on the compute track.
  void arrive_until(std::size_t track, std::int64_t time) {
    if (track != 0) return;
    for (; arrived_ < arrivals_.size() && arrivals_[arrived_].time < time; ++arrived_) {
      if (depth_ == 0) continue;
      const Arrival& arrival = arrivals_[arrived_];
      landed_.emplace(arrival.source, arrival.time);
      arrow("f", track, arrival.time, arrival.source);
    }
  }

  void arrow(std::string_view ph, std::size_t track, std::int64_t time, const Span* source) {
    const std::int64_t id = (std::int64_t{pid_} << 32) + (source - trace_.spans().begin());
    event(ph, track, time,
          fmt::format(R"(,"name":"result","cat":"flow","id":{}{})", id, ph == "f" ? R"(,"bp":"e")" : ""));
  }

  void write_counters() {
    for (const Trace::MemorySample& sample : trace_.memory()) {
      Args args;
      for (const std::size_t c : indices(sample.bytes)) args.add(name(static_cast<MemoryCategory>(c)), sample.bytes[c]);
      event("C", 0, sample.time, R"(,"name":"memory bytes","args":)" + args.text());
    }
    for (const Trace::Count& count : trace_.counts())
      event("C", 0, count.time,
            fmt::format(R"(,"name":{},"args":{{{}:{}}})", quoted(count.name), quoted(count.series), count.value));
  }

  const Trace& trace_;
  const int pid_, rank_;
  std::string out_;
  std::vector<Arrival> arrivals_;
  std::unordered_map<const Span*, std::int64_t> landed_;  // work -> time its arrow ends
  std::size_t arrived_ = 0;
  std::vector<Open> open_;
  Chain chain_, wanted_;
  std::size_t chain_depth_ = 0;  // open spans around the chain
  std::int64_t chain_end_ = 0;   // of the last span within it
  int depth_ = 0;
};

}  // namespace

std::string trace_events(const Trace& trace, int rank) { return Writer(trace, rank).text(); }

std::string trace_file(const std::vector<std::string>& events_of_ranks,
                       const std::vector<std::pair<std::string, std::string>>& notes) {
  Args other;
  for (const auto& [key, value] : notes) other.add(key, value);
  std::string out = R"({"displayTimeUnit":"ms","otherData":)" + other.text() + ",\"traceEvents\":[\n";
  bool first = true;
  for (const std::string& events : events_of_ranks) {
    if (events.empty()) continue;
    if (!first) out += ",\n";
    out += events;
    first = false;
  }
  return out + "\n]}\n";
}

}  // namespace sherd
