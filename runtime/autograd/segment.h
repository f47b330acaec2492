#pragma once
// Calls that backward runs again. A segment is what one scope has recorded: of its calls the tape keeps only what comes
// from outside (and what the policy says), and backward computes results within it from that, each when a vjp first
// reads it. The tape itself is complete: no module, hook or recording runs a second time.
#include <cstdint>
#include <utility>

#include "runtime/op/core/tape_modes.h"

namespace sherd {

struct Op;

/// What the tape keeps of a call in a segment.
enum class Saves : std::uint8_t {
  nothing,  ///< only what comes from outside: the call runs again
  needs,    ///< what its vjp reads, as outside of segments
  results,  ///< that and all results: the call does not run again
};

class SegmentPolicy {
 public:
  virtual Saves saves(const Op& row) const = 0;

 protected:
  ~SegmentPolicy() = default;
};

/// Calls that are recorded on this thread in the outermost such scope are one segment; an inner scope brings another
/// policy only. The policy outlives the scope. In a segment Errors name a tensor that the host reads, and a collective
/// row (not one of a distributed tensor) that would run again.
class SegmentScope {
 public:
  explicit SegmentScope(const SegmentPolicy& policy) : SegmentScope() {
    modes_.segment_policy = &policy;
    if (modes_.segment == 0) modes_.segment = RankContext::current().next_id();
  }
  ~SegmentScope() {
    modes_.segment_policy = outer_policy_;
    modes_.segment = outer_;
  }
  SegmentScope(const SegmentScope&) = delete;
  SegmentScope& operator=(const SegmentScope&) = delete;

 protected:
  SegmentScope() : modes_(tape_modes()), outer_policy_(modes_.segment_policy), outer_(modes_.segment) {}
  TapeModes& modes_;

 private:
  const SegmentPolicy* const outer_policy_;
  const std::uint64_t outer_;
};

/// What is called in such a scope belongs to no segment: communication that is not repeated, and what users do in it.
class OutsideSegment : private SegmentScope {
 public:
  OutsideSegment() {
    modes_.segment_policy = nullptr;
    modes_.segment = 0;
  }
};

}  // namespace sherd
