#pragma once
// Calls in which something goes wrong: gathers and sums of ones over all ranks of a group.
#include <atomic>

#include "runtime/comm/group/lanes.h"
#include "runtime/comm/group/process_group.h"
#include "runtime/exec/context.h"
#include "runtime/exec/device_queue.h"
#include "runtime/op/rows/ops.h"

namespace sherd::testing {

struct FailingCall {
  Tensor x, out;
  bool sums = false;

  FailingCall(Device device, std::int64_t count, bool is_sum, int ranks = 3)
      : x(to(ones({count}), device)), out(to(zeros({is_sum ? count : count * ranks}), device)), sums(is_sum) {}

  std::string_view queue() const { return sums ? kReduceQueue : kGatherQueue; }
  void issue(ProcessGroup& group) const {
    const Device device = x.device();
    const Loan loans[] = {{x.storage(), false}, {out.storage(), true}};
    const std::size_t counts = sums ? 1 : static_cast<std::size_t>(group.size());
    Collective call{.op = sums ? comm::CommOp::all_reduce : comm::CommOp::all_gather,
                    .parts = {{.in = {x.storage()->address(), x.bytes(), device},
                               .out = {out.storage()->address(), out.bytes(), device},
                               .counts = std::vector<std::int64_t>(counts, x.numel())}}};
    group.issue(std::move(call), {.queue = RankContext::current().queue(queue(), device),
                                  .name = sums ? "reduce" : "unshard",
                                  .subject = "blocks.0",
                                  .loans = loans});
  }
  /// Waits for the device, and throws what went wrong.
  void look() const { (void)out.to_vector<float>(); }
  /// Makes the call's stream wait until `word`, of DeviceContext::progress(), is 1.
  void block_stream(Device device, const std::atomic<std::uint32_t>& word) const {
    static_cast<DeviceQueue&>(RankContext::current().queue(queue(), device)).stream().wait(word, 1);
  }
};

}  // namespace sherd::testing
