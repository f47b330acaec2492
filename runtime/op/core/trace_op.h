#pragma once
// The span of one op call, with the shapes it was called on.
#include "runtime/exec/trace.h"
#include "runtime/op/core/dispatch.h"
#include "runtime/tensor/no_copy.h"

namespace sherd {

/// From construction to destruction; only while the rank's thread records a trace. Samples memory at its end.
class OpSpan : NoCopy {
 public:
  explicit OpSpan(const OpCall& call);
  ~OpSpan();
  /// The op's kernels are queued: waits for them if the trace asks for that. Throws what failed on the device.
  void queued();

 private:
  TraceSpan span_;
};

/// Puts the bytes in use into the trace, if there is one.
void trace_memory();

}  // namespace sherd
