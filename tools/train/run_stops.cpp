#include "tools/train/run_stops.h"

#include "runtime/comm/group/host_group.h"

namespace sherd {

Wishes RunStops::agreed(const Wishes& own) const {
  std::int64_t wishes[] = {own.stop, own.save ? 1 : 0, own.regroup ? 1 : 0};
  group_.host().all_reduce({in_place(wishes, DType::i64, 3)}, {.kind = ReduceKind::max});
  return {static_cast<int>(wishes[0]), wishes[1] != 0, wishes[2] != 0};
}

}  // namespace sherd
