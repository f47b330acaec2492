#pragma once
#include "nn/parallel/shard/wrap/fully_shard.h"
#include "runtime/tensor/no_copy.h"

namespace sherd::nn {

/// Backward passes in the scope reduce nothing, see set_requires_gradient_sync(); those after it reduce the sum.
///
///   for (int m = 0; m < micro_batches; ++m) {
///     std::optional<nn::NoSync> no_sync;
///     if (m < micro_batches - 1) no_sync.emplace(model);
///     backward(model(batch(m)));
///   }
class NoSync : NoCopy {
 public:
  explicit NoSync(Module& root) : root_(root) { units(root_).set_requires_gradient_sync(false); }
  ~NoSync() { units(root_).set_requires_gradient_sync(true); }

 private:
  Module& root_;
};

}  // namespace sherd::nn
