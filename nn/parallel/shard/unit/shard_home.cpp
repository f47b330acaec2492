#include "nn/parallel/shard/unit/shard_home.h"

#include "nn/parallel/shard/unit/unit_layout.h"
#include "runtime/autograd/segment.h"
#include "runtime/exec/context.h"
#include "runtime/op/unit/unit.h"

namespace sherd::nn {

OffloadAttrs ShardHome::attrs() const { return {.device = store_->device(), .in_flight = kShardsInFlight}; }

Tensor ShardHome::allocate(std::int64_t bytes, Device device) {
  if (!store_) store_ = OffloadStore::shared(device, options_.folder, options_.bytes_in_flight);
  return store_->allocate({bytes}, DType::u8);
}

void ShardHome::start(const UnitLayout& unit, const Tensor& shards, const Tensor& full) {
  const std::uint32_t version = shards.storage()->version();
  const CaptureSink* const recording = RankContext::current().capture;
  const bool is_known = started_ && (!recording || recording->has_seen(*started_->here.storage()));
  if (is_known && started_->version == version) return;  // a step that is recorded fetches what it gathers
  started_.reset();
  const OutsideSegment outside;  // of a module that is recomputed: no gather is repeated
  if (unit.shards == 1 && !casts(unit)) return fetch_into(shards, full, attrs());
  const Tensor here = fetch_shards(shards, attrs());
  if (unit.shards == 1) started_ = {here, version};
  else start_gather(unit, here, full);
}

void ShardHome::finish(const UnitLayout& unit, const Tensor& shards, const Tensor& full) {
  start(unit, shards, full);
  if (!started_) return;
  const OutsideSegment outside;
  start_gather(unit, started_->here, full);
  started_.reset();
}

}  // namespace sherd::nn
