#pragma once
// A rank writes down what it does in this scope.
//
//   Trace trace;
//   {
//     const TraceRecording recording(trace);
//     train();
//   }
//   file << trace_file({trace_events(trace, 0)}, {});  // trace_json.h

namespace sherd {

class Trace;

/// The rank's thread writes into `trace` for a scope.
class TraceRecording {
 public:
  explicit TraceRecording(Trace& trace);
  ~TraceRecording();
  TraceRecording(const TraceRecording&) = delete;
  TraceRecording& operator=(const TraceRecording&) = delete;

 private:
  Trace*& current_;  // of the rank
  Trace* const outer_;
};

}  // namespace sherd
