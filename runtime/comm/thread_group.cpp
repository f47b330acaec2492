#include "runtime/comm/thread_group.h"

#include "runtime/comm/board_group.h"
#include "runtime/comm/exchange.h"

namespace sherd {

std::vector<std::shared_ptr<ProcessGroup>> make_thread_groups(int size) {
  constexpr int kMaxRanks = 252;  // as many as processes may be
  check(size >= 1 && size <= kMaxRanks, "a thread group of {} ranks; give 1..{}", size, kMaxRanks);
  constexpr std::size_t kWindow = comm::kSmallBytes;
  const std::shared_ptr<std::byte> memory = comm::Board::heap_memory(size, kWindow);
  std::vector<std::shared_ptr<ProcessGroup>> groups;
  for (int rank = 0; rank < size; ++rank) {
    comm::BoardOptions options{
        .rank = rank, .size = size, .window_bytes = kWindow, .is_one_process = true, .has_died = {}};
    groups.push_back(std::make_shared<comm::BoardGroup>("thread", memory, options));
  }
  return groups;
}

}  // namespace sherd
