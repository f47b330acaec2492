#pragma once
// What users have set of the reductions of a unit, and the facts that follow for every route of its gradients.
#include "nn/parallel/shard/gather/unit_gather.h"
#include "nn/parallel/shard/reduce/route.h"
#include "nn/parallel/shard/unit/unit_buffers.h"
#include "nn/parallel/shard/unit/unit_knobs.h"

namespace sherd::nn {

struct ReductionSettings {
  HostState<ReductionKnobs> knobs;
  UnitReduce reduce{};       ///< null: one row
  AllReduceHook hook{};      ///< null: none
  int passes_that_wait = 0;  ///< of a step, as far as is known
  Route::Facts facts{};      ///< alike for all pieces: those of the unit, and what is set

  ReductionSettings(const UnitBuffers& buffers, int num_ranks)
      : knobs([](const void* unit) { return label_of(static_cast<const UnitPieces*>(unit)->layout()); },
              &buffers.pieces()) {
    knobs.set<&ReductionKnobs::divide_factor>(static_cast<double>(num_ranks));
    update(buffers);
  }
  /// To be called after a change of the others, or of the layout.
  void update(const UnitBuffers& buffers) {
    const UnitPieces& pieces = buffers.pieces();
    const UnitLayout& layout = pieces.layout();
    const ShardHome* const home = buffers.levels().home();
    const ReductionKnobs& now = knobs.all();
    facts = {.has_shards = layout.shards > 1,
             .has_replicas = layout.replicas > 1,
             .divides = pieces.owned() != nullptr,
             .has_home = home && home->options().gradients,
             .syncs = now.syncs,
             .all_reduces = now.all_reduces,
             .reduces_unused = now.reduces_unused,
             .has_custom = reduce != nullptr,
             .has_hook = hook != nullptr,
             .sums_in_tree = now.sums_in_tree,
             .accumulated = now.accumulated};
    facts.is_direct = pieces.is_plain() && layout.replicas == 1 && !facts.has_home && !facts.has_hook &&
                      !casts_gradients(layout) && now.divide_factor == 1;
  }
};

}  // namespace sherd::nn
