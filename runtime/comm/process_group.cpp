#include "runtime/comm/process_group.h"

#include "runtime/comm/board_group.h"

namespace sherd {

std::string_view name(ReduceKind kind) {
  constexpr std::string_view names[] = {"sum", "avg", "max", "min", "product"};
  return names[static_cast<int>(kind)];
}

CommCounts& CommCounts::operator+=(const CommCounts& other) {
  for (const auto item : {&CommCounts::all_gather, &CommCounts::reduce_scatter, &CommCounts::all_reduce,
                          &CommCounts::broadcast, &CommCounts::barrier}) {
    (this->*item).calls += (other.*item).calls;
    (this->*item).bytes += (other.*item).bytes;
  }
  seconds += other.seconds;
  return *this;
}

std::shared_ptr<ProcessGroup> make_single_group() {
  comm::BoardOptions options{.rank = 0, .size = 1, .window_bytes = 0, .is_one_process = true, .has_died = {}};
  return std::make_shared<comm::BoardGroup>("single", comm::Board::heap_memory(1, 0), options);
}

}  // namespace sherd
