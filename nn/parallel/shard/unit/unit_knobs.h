#pragma once
// What users tell a unit of fully_shard between steps, as a captured step sees it (runtime/op/core/host_state.h).
#include <string>

#include "nn/parallel/data_mesh.h"
#include "runtime/op/attrs/attr_text.h"
#include "runtime/op/core/host_state.h"

namespace sherd {

template <>
struct AttrValue<nn::ShardedOver> : AttrIdentity<nn::ShardedOver> {
  static void print(nn::ShardedOver over, AttrWriter& out) {
    constexpr std::string_view names[] = {"none", "shards", "all"};
    out.raw(names[static_cast<std::size_t>(over)]);
  }
  static void read(nn::ShardedOver&, AttrReader& in) { in.refuse("value that is read back"); }
};

namespace nn {

/// How the gradients of a unit are reduced.
struct ReductionKnobs {
  double divide_factor = 1;
  bool all_reduces = true, syncs = true, reduces_unused = false;
  ShardedOver accumulated = ShardedOver::none;
  bool sums_in_tree = false;
  int hold_levels = 0;  ///< places for gradients that wait: one, of a tree one for each digit of the passes so far
  bool reshards = true;
  int max_reductions = 1;
  Changes reduce{}, all_reduce_hook{};

  static constexpr AttrField fields[] = {
      attr<&ReductionKnobs::divide_factor>("divide_factor").seen_by(SeenBy::guard, "each reduction"),
      attr<&ReductionKnobs::all_reduces>("requires_all_reduce").seen_by(SeenBy::guard, "each reduction"),
      attr<&ReductionKnobs::syncs>("requires_gradient_sync").seen_by(SeenBy::guard, "the end of each pass"),
      attr<&ReductionKnobs::reduces_unused>("reduce_unused").seen_by(SeenBy::guard, "the end of each pass"),
      attr<&ReductionKnobs::accumulated>("accumulated").seen_by(SeenBy::guard, "the end of each pass"),
      attr<&ReductionKnobs::sums_in_tree>("sums_in_tree").seen_by(SeenBy::guard, "the end of each pass"),
      attr<&ReductionKnobs::hold_levels>("hold_levels")
          .seen_by(SeenBy::guard, "a pass looks for what earlier ones left"),
      attr<&ReductionKnobs::reshards>("reshard_after_backward").seen_by(SeenBy::guard, "the end of each pass"),
      attr<&ReductionKnobs::max_reductions>("max_reductions").seen_by(SeenBy::guard, "each reduction"),
      attr<&ReductionKnobs::reduce>("custom_reduce").seen_by(SeenBy::guard, "each reduction"),
      attr<&ReductionKnobs::all_reduce_hook>("all_reduce_hook").seen_by(SeenBy::guard, "each reduction")};
};

/// When a unit gathers and lets go.
struct GatherKnobs {
  bool is_told = false;  ///< whether to reshard after forward; else the root does not
  bool reshards = true;  ///< if it is told
  std::string slices{};  ///< the mesh of ranks that it reshards to, if they are neither none nor all
  Changes forward_prefetch{}, backward_prefetch{};
  bool is_last = true;  ///< the next backward, of those that belong together

  static constexpr AttrField fields[] = {
      attr<&GatherKnobs::is_told>("reshard_after_forward.is_set").seen_by(SeenBy::guard, "each forward and backward"),
      attr<&GatherKnobs::reshards>("reshard_after_forward").seen_by(SeenBy::guard, "each forward and backward"),
      attr<&GatherKnobs::slices>("reshard_after_forward.ranks").seen_by(SeenBy::guard, "each forward and backward"),
      attr<&GatherKnobs::forward_prefetch>("forward_prefetch").seen_by(SeenBy::guard, "each forward"),
      attr<&GatherKnobs::backward_prefetch>("backward_prefetch").seen_by(SeenBy::guard, "each backward"),
      attr<&GatherKnobs::is_last>("is_last_backward").seen_by(SeenBy::guard, "the end of each pass")};
};

}  // namespace nn
}  // namespace sherd
