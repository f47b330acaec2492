#pragma once
// How the tape records the calls of this rank's thread; whether it does is RankContext::grad_enabled. Changed through
// the RAII guards of runtime/autograd only.
#include <cstdint>

#include "runtime/exec/context.h"
#include "runtime/op/core/tensor.h"

namespace sherd {

class BackwardPass;
class SavedPolicy;
class SegmentPolicy;

struct TapeModes {
  BackwardPass* backward = nullptr;     ///< the pass that runs
  SavedPolicy* saved_policy = nullptr;  ///< in which form bytes are saved; null: as they are (autograd/saved_policy.h)
  /// What the tape keeps of the segment that is recorded now, and its number; null and 0 outside of one. See
  /// autograd/segment.h.
  const SegmentPolicy* segment_policy = nullptr;
  std::uint64_t segment = 0;
  /// Leaves of the batch that a pass has, and the loss of them all, once it is known. See autograd/leaves.h.
  std::int64_t leaves = 1;
  Tensor loss_of_leaves{};
};

inline TapeModes& tape_modes() { return RankContext::current().state<TapeModes>(); }

/// Whether calls with gradients become part of a segment.
inline bool records_segment() { return RankContext::current().grad_enabled && tape_modes().segment != 0; }

}  // namespace sherd
