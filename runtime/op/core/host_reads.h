#pragma once
// Numbers on their way from a device to the host. A training loop that asked for its loss at once would leave the
// device idle while the host queues the next step; here the host goes on, and each number is used when it is there.
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "runtime/exec/backend.h"
#include "runtime/op/core/tensor.h"
#include "runtime/tensor/no_copy.h"

namespace sherd {

/// Error if the host may not read a value here: in a captured step, and in a segment (autograd/segment.h), where it
/// would not be read again. `what` reads it.
void check_may_read(const Tensor& tensor, std::string_view what);

/// A queue of reads, each with a function that takes its values, in the order of the calls. One rank, one thread.
class HostReads : NoCopy {
 public:
  using Consumer = std::function<void(std::span<const double> values)>;

  /// More than `max_in_flight` reads wait for the oldest: the host is never further ahead of the device.
  explicit HostReads(std::size_t max_in_flight = 4) : max_in_flight_(max_in_flight) {}

  /// Starts to read plain one-element tensors (those of the host are read now); `use` gets their values in this order,
  /// in a later call of push(), poll() or finish(). Those throw what `use` throws, and what failed on the device: that
  /// read is dropped then, and all later ones, whose numbers mean nothing. Error where check_may_read() says so.
  void push(std::initializer_list<Tensor> scalars, Consumer use);
  /// Uses what has arrived. Does not block.
  void poll();
  /// Blocks until all have arrived and uses them.
  void finish();
  bool empty() const { return waiting_.empty(); }

 private:
  struct Part {
    std::unique_ptr<HostRead> read;  // null: the tensor was on the host and `value` is its number
    DType dtype;
    double value;
  };
  struct Waiting {
    std::vector<Part> parts;
    Consumer use;
  };
  double value_of(const Part& part);
  bool is_ready() const;
  void use_first();

  const std::size_t max_in_flight_;
  std::deque<Waiting> waiting_;
};

}  // namespace sherd
