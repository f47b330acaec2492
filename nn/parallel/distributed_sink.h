#pragma once
// The gradient sink of distributed parameters outside of fully_shard groups: slot.grad(), in the parameter's layout.
#include <memory>
#include <vector>

#include "nn/module.h"
#include "nn/parallel/partial_gradients.h"
#include "runtime/tensor/no_copy.h"

namespace sherd::nn {

/// Partial(sum) gradients of replicated parameters are reduced at the end of the pass, see partial_gradients.h; every
/// other gradient is redistributed to the parameter's layout when it arrives. Passes accumulate.
class DistributedSink final : public GradSink, NoCopy {
 public:
  /// Becomes the sink of `parameters`, which are distributed over `mesh`, a mesh of one axis.
  DistributedSink(const DeviceMesh& mesh, const std::vector<Parameter*>& parameters);
  /// Parameters that still have this sink get the default one.
  ~DistributedSink();

  Destination destination(Slot& slot) override;
  void wrote(Slot&) override {}
  void accept(Slot& slot, Tensor gradient) override;
  void finish(Slot& slot) override;
  void abandon(Slot& slot, std::string_view reason) noexcept override;

 private:
  DeviceMesh mesh_;
  std::shared_ptr<PartialGradients> partial_;
  std::vector<NodeRef> leaves_;
};

}  // namespace sherd::nn
