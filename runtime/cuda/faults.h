#pragma once
// What kernels find wrong in the values they read, an index beyond a table for instance. A launch cannot throw it: the
// kernel writes it down, treats the element as absent and goes on; the next wait for the device throws.
//
//   host    faults.sink(row, "index") -> argument of the kernel           next wait: check() throws "embedding: index 9
//   ..." device  report_fault(sink, position, value, limit)  ->  one record in pinned memory, which both sides see
//
// The record keeps the first fault: that of the earliest call, and of its faults the one with the lowest position, so
// the same program fails with the same words. A step without faults pays nothing for this.
#include <cstdint>
#include <string_view>

#include <cuda_runtime_api.h>

#include "runtime/cuda/device.h"
#include "runtime/op/op.h"

namespace sherd::cuda {

struct FaultRecord {
  std::uint32_t lock, found;
  std::uint64_t order;
  std::int64_t position, value, limit;
  const Op* row;
  const char* what;
};

/// Where the kernels of one call report to. Passed to them by value.
struct FaultSink {
  FaultRecord* record;
  std::uint64_t order;  ///< of the call among the context's calls
  const Op* row;
  const char* what;
};

/// `value`, element `position` of an input in row-major order, is not in 0..limit-1. Any number of threads may report.
__device__ inline void report_fault(const FaultSink& sink, std::int64_t position, std::int64_t value,
                                    std::int64_t limit) {
  volatile FaultRecord& record = *sink.record;
  for (bool done = false; !done;) {
    if (atomic_or(&sink.record->lock, 1u) != 0) continue;
    fence_device();
    if (record.found == 0 || (record.order == sink.order && position < record.position)) {
      record.order = sink.order;
      record.position = position;
      record.value = value;
      record.limit = limit;
      record.row = sink.row;
      record.what = sink.what;
      record.found = 1;
    }
    fence_device();
    atomic_add(&sink.record->lock, ~0u);  // the lock was 1
    done = true;
  }
}

/// The record of one context.
class Faults {
 public:
  Faults();
  ~Faults();  ///< nothing that reports may be in flight
  Faults(const Faults&) = delete;
  Faults& operator=(const Faults&) = delete;

  /// For the kernels of one call of `row`; `what` is a literal that names the value: "index", "target".
  FaultSink sink(const Op& row, const char* what) { return {record_, ++order_, &row, what}; }
  /// After a wait for `stream`: throws Error naming the fault if there is one, and forgets it. Waits for the rest of
  /// the stream then, and only then.
  void check(cudaStream_t stream, Device device);

 private:
  FaultRecord* record_ = nullptr;  // pinned
  std::uint64_t order_ = 0;
};

}  // namespace sherd::cuda
