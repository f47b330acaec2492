#pragma once
// Calls that backward runs again. A segment is what one scope has recorded: of its calls the tape keeps only what comes
// from outside (and what the policy says), and backward computes results within it from that, each when a vjp first
// reads it. The tape itself is complete: no module, hook or recording runs a second time.
#include <cstdint>

#include "runtime/op/core/tape_modes.h"
#include "runtime/tensor/for_scope.h"

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
  explicit SegmentScope(const SegmentPolicy& policy)
      : SegmentScope(&policy, tape_modes().segment ? tape_modes().segment : RankContext::current().next_id()) {}

 protected:
  SegmentScope(const SegmentPolicy* policy, std::uint64_t segment)
      : policy_(&tape_modes().segment_policy, policy), segment_(&tape_modes().segment, segment) {}

 private:
  const ForScope<const SegmentPolicy*> policy_;
  const ForScope<std::uint64_t> segment_;
};

/// What is called in such a scope belongs to no segment: communication that is not repeated, and what users do in it.
class OutsideSegment : private SegmentScope {
 public:
  OutsideSegment() : SegmentScope(nullptr, 0) {}
};

}  // namespace sherd
