#pragma once
// What a queue keeps of a piece of work, and what must be over before it.
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/exec/context.h"
#include "runtime/exec/purpose.h"
#include "runtime/exec/queue.h"

namespace sherd {

/// Asked on the rank's thread by who is about to write or free a storage on loan to work, before it waits. True: the
/// work no longer looks at the bytes there, and nobody waits. False: it has to be waited for. It neither waits for the
/// work nor throws.
using LetGo = std::function<bool(const Storage& storage)>;

/// One item, from submit until the submitting thread has let go of it. Times are nanoseconds of the monotonic
/// clock, as in traces.
struct QueueItem {
  std::uint64_t sequence = 0;
  std::string_view queue, name;
  Purpose purpose;
  std::string subject, issued;  ///< issued: module, rank and step at submit, for messages
  const std::string* module_path = nullptr;
  StepPhase phase = StepPhase::forward;
  std::int64_t bytes = 0;
  int calls = 1;  ///< that it counts as; 0 of a part of a call that another item counts
  std::function<void()> run;
  std::function<void(std::string_view)> abort;
  std::function<bool()> is_ready;
  LetGo let_go;
  bool has_begun = false;  // see QueueWork::begin
  std::vector<Ref<Storage>> held;
  struct Before {
    Event event;
    bool wrote;  // what this item uses: its errors are this item's
  };
  std::vector<Before> after;  // work of other queues
  std::vector<Skew> skews;    // of its collectives and of what it waited for
  std::int64_t submitted = 0, started = 0, ended = 0;
  std::int64_t exposed = 0, exposed_skew = 0;  // nanoseconds that the rank's thread has waited for it; see work_times.h
};
/// "gather unshard blocks.3".
std::string describe(const QueueItem& item);
/// Adds the span of an item that is over. `flow` names its event.
void add_span(Trace& trace, const QueueItem& item, std::uint64_t flow, std::uint8_t track);

/// What must be over before work with these loans starts on `queue`: of other queues only, since work of one queue
/// comes in order. Throws what failed to write what is used.
std::vector<QueueItem::Before> work_before(const Queue& queue, std::span<const Loan> loans);
/// Where the program stands, for messages: module, rank and step.
std::string issued_at(const RankContext& context);

}  // namespace sherd
