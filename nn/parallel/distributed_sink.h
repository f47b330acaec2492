#pragma once
// Where the gradients of distributed parameters go while no fully_shard group takes them: into slot.grad(), in the
// parameter's layout.
#include <memory>
#include <vector>

#include "nn/module.h"
#include "nn/parallel/partial_gradients.h"

namespace sherd::nn {

/// Sums that whole parameters get as terms on the ranks wait for the end of the pass, see partial_gradients.h; every
/// other gradient is brought to the parameter's layout when it arrives. Repeated passes add up.
class DistributedSink final : public GradSink {
 public:
  /// Becomes the sink of `parameters`, which are distributed over `mesh`, a mesh of one axis.
  DistributedSink(const DeviceMesh& mesh, const std::vector<Parameter*>& parameters);
  /// Those that still have it get the default one.
  ~DistributedSink();
  DistributedSink(const DistributedSink&) = delete;
  DistributedSink& operator=(const DistributedSink&) = delete;

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
