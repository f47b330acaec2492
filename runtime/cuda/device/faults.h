#pragma once
// What kernels find wrong in the values they read, an index beyond a table for instance. A launch cannot throw it: the
// kernel writes it down, treats the element as absent and goes on; the next wait for the device throws.
//
//   host    faults.sink(row, "index") -> argument of the kernel           next wait: check() throws "embedding: index 9
//   ..." device  report_fault(sink, position, value, limit)  ->  a record in device memory, a flag in pinned memory
//
// The record keeps the first fault: that of the earliest call, and of its faults the one with the lowest position, so
// the same program fails with the same words. A step without faults pays nothing for this, and millions of faults cost
// a read each: no thread waits for another, and no atomic leaves the device.
#include <cstdint>
#include <memory>

#include <cuda_runtime_api.h>

#include "runtime/cuda/device/device.h"
#include "runtime/op/core/op.h"
#include "runtime/tensor/no_copy.h"

namespace sherd::cuda {

/// All ones: nothing was found. The call that comes first owns it: it alone writes the rest.
struct FaultRecord {
  static constexpr std::uint64_t kNone = ~std::uint64_t{0};
  // Each piece is the lowest of all `position << 24 | 24 bits of the value there`. A value goes with its position, so
  // the pieces are those of the lowest position's value, whoever wrote each of them.
  static constexpr int kPieces = 3, kPieceBits = 24;  // positions have 40 bits
  std::uint64_t call;                                 // the order of the call
  std::uint64_t pieces[kPieces];
  std::int64_t limit;
  const Op* row;
  const char* what;
};

/// Where the kernels of one call report to. Passed to them by value.
struct FaultSink {
  FaultRecord* record;   ///< in device memory
  std::uint32_t* found;  ///< in pinned memory
  std::uint64_t order;   ///< of the call among the context's calls
  const Op* row;
  const char* what;
};

/// `value`, element `position` of an input in row-major order, is not in 0..limit-1. Any number of threads may report;
/// `limit` is one for the whole call.
__device__ inline void report_fault(const FaultSink& sink, std::int64_t position, std::int64_t value,
                                    std::int64_t limit) {
  FaultRecord& record = *sink.record;
  std::uint64_t call = load_volatile(&record.call);
  if (call == FaultRecord::kNone) {
    call = atomic_replace(&record.call, FaultRecord::kNone, sink.order);
    if (call == FaultRecord::kNone) {  // this thread is the call's first
      call = sink.order;
      record.limit = limit;
      record.row = sink.row;
      record.what = sink.what;
      *sink.found = 1;
    }
  }
  if (call != sink.order) return;
  const auto at = static_cast<std::uint64_t>(position);
  if (at >= load_volatile(&record.pieces[0]) >> FaultRecord::kPieceBits) return;
  constexpr std::uint64_t mask = (std::uint64_t{1} << FaultRecord::kPieceBits) - 1;
  for (int i = 0; i < FaultRecord::kPieces; ++i) {
    const std::uint64_t piece = static_cast<std::uint64_t>(value) >> i * FaultRecord::kPieceBits & mask;
    atomic_min(&record.pieces[i], at << FaultRecord::kPieceBits | piece);
  }
}

/// The record of one context.
class Faults : NoCopy {
 public:
  explicit Faults(cudaStream_t stream);

  /// For the kernels of one call of `row`; `what` is a literal that names the value: "index", "target".
  FaultSink sink(const Op& row, const char* what) { return {record_.get(), &host_->found, ++order_, &row, what}; }
  /// After a wait for `stream`: throws Error naming the fault if there is one, and forgets it. Waits for the rest of
  /// the stream then, and only then.
  void check(cudaStream_t stream, Device device);

 private:
  struct Host {
    std::uint32_t found;
    FaultRecord record;  // a copy, once there is something to say
  };
  struct Free {  // nothing that reports may be in flight
    void operator()(FaultRecord* device) const { (void)cudaFree(device); }
  };
  void forget(cudaStream_t stream);

  std::unique_ptr<FaultRecord, Free> record_;
  std::shared_ptr<Host> host_;  // pinned
  std::uint64_t order_ = 0;
};

}  // namespace sherd::cuda
