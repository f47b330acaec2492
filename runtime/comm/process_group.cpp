#include "runtime/comm/process_group.h"

#include "runtime/comm/board_group.h"

namespace sherd {

std::string_view name(ReduceKind kind) {
  constexpr std::string_view names[] = {"sum", "avg", "max", "min", "product"};
  return names[static_cast<int>(kind)];
}

std::shared_ptr<ProcessGroup> make_single_group() {
  comm::BoardOptions options{.rank = 0, .size = 1, .window_bytes = 0, .is_one_process = true, .has_died = {}};
  return std::make_shared<comm::BoardGroup>(
      "single", std::make_unique<comm::Board>(comm::Board::heap_memory(1, 0), std::move(options)));
}

}  // namespace sherd
