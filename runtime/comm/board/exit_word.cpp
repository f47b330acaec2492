#include "runtime/comm/board/exit_word.h"

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <vector>

#include "runtime/comm/board/board.h"

namespace sherd::comm {

namespace {

struct LivingBoards {
  std::mutex mutex;
  std::vector<const Board*> boards;
};

/// Never destroyed: a process ends in any order.
LivingBoards& living_boards() {
  static auto* const living = new LivingBoards;
  return *living;
}

void say_last_word(int status, void*) {
  LivingBoards& living = living_boards();
  const std::lock_guard lock(living.mutex);
  for (const Board* board : living.boards) board->tell_exit(status);
}

}  // namespace

ExitWord::ExitWord(const Board& board) : board_(board) {
  static const bool is_registered = ::on_exit(say_last_word, nullptr) == 0;
  static_cast<void>(is_registered);  // without it peers take the end of the process for a death
  LivingBoards& living = living_boards();
  const std::lock_guard lock(living.mutex);
  living.boards.push_back(&board_);
}

ExitWord::~ExitWord() {
  LivingBoards& living = living_boards();
  const std::lock_guard lock(living.mutex);
  std::erase(living.boards, &board_);
}

}  // namespace sherd::comm
