#include <algorithm>
#include <cmath>

#include "runtime/exec/simulate.h"
#include "runtime/exec/trace_json.h"
#include "runtime/tensor/indices.h"

namespace sherd {

namespace {

std::int64_t nanoseconds(double seconds) { return std::llround(seconds * 1e9); }

// Memory changes at points of the program: each at the end of the call or the wait before it.
void sample_memory(Trace& trace, const Simulation::RankSpans& spans) {
  const Timeline& timeline = *spans.timeline;
  std::vector<double> ends(timeline.entries.size(), -1);
  for (const Simulation::Span& span : spans.spans)
    if (timeline.entries[span.entry].kind != Timeline::Kind::item) ends[span.entry] = span.end;
  CategoryBytes now = timeline.base;
  double time = 0;
  trace.sample_memory(now, 0);
  for (const std::size_t i : indices(timeline.entries)) {
    if (ends[i] >= 0) time = ends[i];
    const Timeline::Entry& entry = timeline.entries[i];
    if (entry.kind != Timeline::Kind::memory) continue;
    const Timeline::Change& change = timeline.changes[entry.index];
    now[static_cast<std::size_t>(change.category)] += change.bytes;
    trace.sample_memory(now, nanoseconds(time));
  }
}

Span span_of(const Timeline& timeline, const Simulation::Span& span, Trace& trace) {
  const Timeline::Entry& entry = timeline.entries[span.entry];
  const auto item_text = [&](const Timeline::Item& item) {
    return fmt::format("{} {} {}", timeline.text(item.queue), timeline.text(item.work), timeline.text(item.subject));
  };
  Span out;
  out.start = nanoseconds(span.start);
  out.end = nanoseconds(span.end);
  out.phase = entry.phase;
  if (entry.module != 0) out.module = trace.intern(timeline.text(entry.module));
  switch (entry.kind) {
    case Timeline::Kind::call: {
      const Timeline::Call& call = timeline.calls[entry.index];
      out.kind = SpanKind::op;
      out.name = timeline.text(call.op);
      out.detail = trace.intern(timeline.text(call.shapes));
      break;
    }
    case Timeline::Kind::wait:
      out.kind = SpanKind::wait;
      out.name = kWaitName;
      out.detail = trace.intern(item_text(timeline.items[timeline.waits[entry.index].item]));
      break;
    default: {
      const Timeline::Item& item = timeline.items[entry.index];
      out.kind = SpanKind::work;
      out.name = timeline.text(item.work);
      out.detail = trace.intern(timeline.text(item.subject));
      out.bytes = static_cast<std::int64_t>(item.bytes);
      out.track = trace.track(timeline.text(item.queue));
    }
  }
  return out;
}

}  // namespace

std::string simulated_events(const Simulation::RankSpans& spans) {
  Trace trace(std::max(spans.spans.size(), spans.timeline->changes.size()) + 1);
  for (const Simulation::Span& span : spans.spans) trace.add(span_of(*spans.timeline, span, trace));
  sample_memory(trace, spans);
  return trace_events(trace, spans.rank);
}

}  // namespace sherd
