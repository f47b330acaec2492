#pragma once
// Hooks attach to modules from outside: sharding, casting, tensor parallelism, recomputation.
#include <functional>
#include <string_view>

#include "nn/tensor_map.h"

namespace sherd {
class DeviceMesh;
}

namespace sherd::nn {

class Module;

/// A hook on a module. Calls nest in order of registration before forward, in reverse after it.
class ModuleHook {
 public:
  virtual ~ModuleHook() = default;
  virtual void before_forward(Module&) {}
  /// `visit_outputs` walks the tensors of the result.
  virtual void after_forward(Module&, const std::function<void(const TensorVisitor&)>& visit_outputs) {
    (void)visit_outputs;
  }
  /// Forward left by an exception that says `reason`; must not communicate.
  virtual void abandon_forward(Module&, std::string_view reason) noexcept { (void)reason; }
  /// Whether this hook may replace inputs, or outputs, of forward(). Inputs pass the hooks in order of registration,
  /// after every before_forward; outputs in reverse, before every after_forward.
  virtual bool maps_inputs() const { return false; }
  virtual bool maps_outputs() const { return false; }
  virtual void map_input(Module&, Tensor& tensor, TensorPlace place) { (void)tensor, (void)place; }
  virtual void map_output(Module&, Tensor& tensor, TensorPlace place) { (void)tensor, (void)place; }
  /// Allocate parameters on `device` now; called top-down before initial values are drawn.
  virtual void before_materialize(Module&, Device device) { (void)device; }
  /// Give floating-point parameters this dtype now; called top-down by Module::cast_to().
  virtual void before_cast(Module&, DType dtype) { (void)dtype; }
  /// Whether the module's forward may be recomputed in backward (recompute.h): recorded ops run again, and no hook
  /// does. True where all that a hook does to values goes through such ops, and the rest need not be repeated.
  virtual bool can_recompute() const { return false; }
  /// A mesh along whose axes ranks have data of their own in the module's forward; null: the hook does not say. Random
  /// rows draw by it (batch_part.h).
  virtual const DeviceMesh* data_mesh() const { return nullptr; }
};

}  // namespace sherd::nn
