#include "runtime/comm/group/link.h"

#include <algorithm>
#include <cmath>

#include "runtime/tensor/error.h"

namespace sherd::comm {

Link::Link(const LinkShape& shape, int num_ranks) : shape_(shape), num_ranks_(num_ranks) {
  check(std::isfinite(shape.bytes_per_second) && shape.bytes_per_second > 0,
        "a link of {} bytes per second; give a positive number", shape.bytes_per_second);
  check(std::isfinite(shape.seconds) && shape.seconds >= 0, "a link with a latency of {} s; give 0 or more",
        shape.seconds);
}

LinkPrice price_of(const LinkShape& shape) {
  return {.call_seconds = 0, .peer_seconds = shape.seconds, .bytes_per_second = shape.bytes_per_second};
}

double Link::seconds(CommOp op, std::int64_t num_bytes) const {
  if (op == CommOp::send) return 0;  // the link is the receiver's
  const LinkPrice price = price_of(shape_);
  const auto bytes = static_cast<double>(num_bytes);
  if (op == CommOp::recv) return price.seconds(Movement::gather, 2, 2 * bytes);  // the half of two ranks
  // What all_to_all packs and unpacks does not pass the link.
  return price.seconds(op == CommOp::all_reduce ? Movement::reduce_all : Movement::gather, num_ranks_, bytes);
}

Link::Clock::time_point Link::pass(Clock::time_point met_at, CommOp op, std::int64_t num_bytes) {
  const std::chrono::duration<double> takes(seconds(op, num_bytes));
  std::lock_guard lock(mutex_);
  free_at_ = std::max(met_at, free_at_) + std::chrono::duration_cast<Clock::duration>(takes);
  return free_at_;
}

}  // namespace sherd::comm
