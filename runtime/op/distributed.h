#pragma once
// What runtime knows of a distributed tensor: it has a layout. `dtensor` implements it; device kernels
// never meet one, because the dist layer of the dispatcher unwraps.
#include <string>

#include "runtime/tensor/shape.h"

namespace sherd {

/// A layout over a mesh. Interned and immortal: equal layouts are one object, so equality is identity.
class Distributed {
 public:
  /// Shape of this rank's local tensor if the global shape is `shape`.
  virtual Shape local_shape(const Shape& shape) const = 0;
  /// Ranks hold Partial values, which a reduction makes the value.
  virtual bool is_partial() const = 0;
  /// Every rank holds the full value.
  virtual bool is_replicated() const = 0;
  /// The replicated layout on the same mesh.
  virtual const Distributed* replicated() const = 0;
  /// "{0: dp}", "{+dp}", "{}".
  virtual std::string describe() const = 0;
  /// The same with the mesh, as programs name layouts: "{0: dp} on mesh(dp=2,tp=2)".
  virtual std::string name() const { return describe(); }

 protected:
  ~Distributed() = default;
};

}  // namespace sherd
