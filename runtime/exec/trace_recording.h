#pragma once
// A rank writes down what it does in this scope.
//
//   Trace trace;
//   {
//     const TraceRecording recording(trace);
//     train();
//   }
//   file << trace_file({trace_events(trace, 0)}, {});  // trace_json.h
#include "runtime/exec/context.h"

namespace sherd {

/// The rank's thread writes into `trace` for a scope.
class TraceRecording {
 public:
  explicit TraceRecording(Trace& trace) : context_(RankContext::current()), outer_(context_.trace) {
    context_.trace = &trace;
  }
  ~TraceRecording() { context_.trace = outer_; }
  TraceRecording(const TraceRecording&) = delete;
  TraceRecording& operator=(const TraceRecording&) = delete;

 private:
  RankContext& context_;
  Trace* const outer_;
};

}  // namespace sherd
