#pragma once
// A rank writes down what it does in this scope.
//
//   Trace trace;
//   {
//     const TraceRecording recording(trace);
//     train();
//   }
//   file << trace_file({trace_events(trace, 0)}, {});  // trace_json.h
#include "runtime/tensor/for_scope.h"

namespace sherd {

class Trace;

/// The rank's thread writes into `trace` for a scope.
class TraceRecording {
 public:
  explicit TraceRecording(Trace& trace);

 private:
  const ForScope<Trace*> scope_;
};

}  // namespace sherd
