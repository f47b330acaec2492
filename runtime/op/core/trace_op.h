#pragma once
// The span of one op call, with the shapes it was called on.
#include <cstdint>
#include <string>

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

/// The first inputs of a call in words: "f32[2,3] f32[3] ... 300 in all"; and a key, equal for calls of one row on
/// equal shapes.
std::string call_shapes(const OpCall& call);
std::uint64_t shapes_key(const OpCall& call);

/// Puts the bytes in use into the trace, if there is one.
void trace_memory();

}  // namespace sherd
