#include "runtime/exec/queue_item.h"

#include "runtime/exec/trace.h"
#include "runtime/memory/let_go.h"
#include "runtime/tensor/error.h"

namespace sherd {

std::string describe(const QueueItem& item) {
  return fmt::format("{} {}{}{}", item.queue, item.name, item.subject.empty() ? "" : " ", item.subject);
}

void add_span(Trace& trace, const QueueItem& item, std::uint64_t flow, std::uint8_t track) {
  trace.add({.start = item.started,
             .end = item.ended,
             .name = item.name,
             .module = item.module_path,
             .detail = trace.intern(item.subject),
             .bytes = item.bytes,
             .flow = flow,
             .track = track,
             .kind = SpanKind::work,
             .phase = item.phase});
}

std::vector<QueueItem::Before> work_before(const Queue& queue, std::span<const Loan> loans) {
  std::vector<QueueItem::Before> before;
  for (const Loan& loan : loans) {
    const Event& written = loan.storage->last_write();
    written.rethrow_if_reached();
    if (written.queue() && written.queue() != &queue) before.push_back({written, true});
    if (!loan.writes) continue;
    const bool is_written = written.is_reached();  // else nobody can copy the bytes yet
    for (const Event& read : loan.storage->last_reads())
      if (read.queue() != &queue && !(is_written && let_go(read, *loan.storage))) before.push_back({read, false});
  }
  return before;
}

// Where the program stood when it submitted: an error is read by somebody who looks for that place.
std::string issued_at(const RankContext& context) {
  std::string text = context.module_path ? *context.module_path : "";
  if (!context.rank_text.empty()) text += (text.empty() ? "" : "      ") + context.rank_text;
  if (context.step >= 0) text += fmt::format("{}step {}", text.empty() ? "" : "      ", context.step);
  return text;
}

}  // namespace sherd
