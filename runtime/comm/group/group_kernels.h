#pragma once
// What collectives are composed with where a group's library lacks it: a table that each backend fills. Lists are one
// launch, on the stream of the queue that the collective runs on; nothing here waits.
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/comm/group/reduction.h"

namespace sherd {
class Queue;
}

namespace sherd::comm {

/// `blocks` runs of `run` elements, whose beginnings are so many elements apart: a copy, a cast between floats, or a
/// tensor whose inner dim is sharded. The ranges do not overlap.
struct ListMove {
  void* to = nullptr;
  const void* from = nullptr;
  DType to_dtype{}, from_dtype{};
  std::int64_t run = 0, blocks = 1, to_step = 0, from_step = 0;
};

/// out[i] = round((inputs[0][i] op inputs[1][i] op ...) * factor [+ out[i]]) as comm::reduce (board/elements.h) says:
/// the CPU's bits. `out` may be one of the inputs.
struct ListSum {
  std::vector<const std::byte*> inputs;
  std::byte* out = nullptr;
  std::int64_t count = 0;
  Reduction reduction{};
};

struct GroupKernels {
  void (*move_list)(std::span<const ListMove> list, Queue& queue);
  void (*sum_list)(std::span<const ListSum> list, Queue& queue);
};

/// The table for the memory of a device: the host's over rank_kernels(), or its backend's. Error, naming the device, if
/// it has none.
const GroupKernels& group_kernels(Device device);

}  // namespace sherd::comm
