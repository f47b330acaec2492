#include "nn/parallel/shard/gather/custom_gather.h"

#include "runtime/autograd/segment.h"
#include "runtime/exec/context.h"

namespace sherd::nn {

// A replay leaves a higher version, as every row that writes does.
bool CustomGather::is_current(const Tensor& shards, const Tensor& full) const {
  return gathered_ == shards.storage()->version() && full.storage()->is_present() &&
         full.storage()->version() == *gathered_;
}

void CustomGather::start(const UnitLayout& unit, const Tensor& shards, const Tensor& full) {
  const Started now{shards.storage()->version(), RankContext::current().capture};
  if (started_ && started_->shards == now.shards && started_->recording == now.recording) return;
  const OutsideSegment outside;  // of a module that is recomputed: no gather is repeated
  cancel();
  gathered_.reset();
  started_ = now;  // before it runs: if it fails, cancel() frees what it holds
  gather_->start(unit, shards, full);
}

void CustomGather::finish(const UnitLayout& unit, const Tensor& shards, const Tensor& full) {
  start(unit, shards, full);
  const OutsideSegment outside;
  gather_->finish(unit, shards, full);
  started_.reset();
  check(full.storage()->is_present(),
        "unit \"{}\": its custom gather has ended and the full parameters have no bytes; call restore_unit(), or "
        "start_gather()",
        unit.name);
  gathered_ = shards.storage()->version();
  full.storage()->set_version(*gathered_);
}

void CustomGather::cancel() {
  if (started_) drop();
}

void CustomGather::drop() {
  started_.reset();
  gather_->cancel();
}

}  // namespace sherd::nn
