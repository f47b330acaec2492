#include "runtime/comm/board/exit_word.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <vector>

#include "runtime/exec/context.h"

namespace sherd::comm {

namespace {

struct LivingWords {
  std::mutex mutex;
  std::vector<const ExitWord*> words;
};

/// Never destroyed: a process ends in any order.
LivingWords& living_words() {
  static auto* const living = new LivingWords;
  return *living;
}

}  // namespace

ExitWord::ExitWord(const BoardMemory& memory) : memory_(memory), exceptions_at_start_(std::uncaught_exceptions()) {
  if (!is_of_process()) return;
  memory_.own().process = ::getpid();
  if (memory_.options.root) return;
  static const bool is_registered = ::on_exit(say_all, nullptr) == 0;
  static_cast<void>(is_registered);  // without it peers take the end of the process for a death
  LivingWords& living = living_words();
  const std::lock_guard lock(living.mutex);
  living.words.push_back(this);
}

// A rank of a subgroup that unwinds gives its reason by abort(), or by leaving the root: a better reason than this
// departure.
ExitWord::~ExitWord() {
  if (is_of_process() && !memory_.options.root) {
    LivingWords& living = living_words();
    const std::lock_guard lock(living.mutex);
    std::erase(living.words, this);
  }
  if (is_of_process() && memory_.own().process != ::getpid()) return;  // a forked child leaves nothing
  if (memory_.lane() != 0 || (memory_.options.root && std::uncaught_exceptions() > exceptions_at_start_)) return;
  if (memory_.own().presence == RankCell::Presence::here) say(kStillRuns);  // or this is the end of the process
}

bool ExitWord::is_of_process() const { return memory_.options.has_died && memory_.lane() == 0; }

void ExitWord::say_all(int status, void*) {
  LivingWords& living = living_words();
  const std::lock_guard lock(living.mutex);
  for (const ExitWord* word : living.words)
    if (word->memory_.own().process == ::getpid()) word->say(status);
}

void ExitWord::say(int status) const {
  RankCell& own = memory_.own();
  const RankContext* const context = RankContext::current_or_null();
  if (context) own.steps = context->step + 1;
  own.exit_status = status;
  own.presence = RankCell::Presence::left;
  memory_.ring_all();
}

}  // namespace sherd::comm
