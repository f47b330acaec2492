#pragma once
// In which form the tape keeps the bytes it saves: by a handle, unless a policy packs them (on the host, in a file,
// compressed). Which bytes it saves is another matter, see segment.h.
#include <memory>

#include "runtime/op/core/tape_modes.h"
#include "runtime/op/core/tensor.h"
#include "runtime/tensor/for_scope.h"

namespace sherd {

class SavedPolicy {
 public:
  /// A saved tensor in another form, until it is used.
  class Packed {
   public:
    virtual ~Packed() = default;
    /// The tensor again: the same bits, shape and strides. Called once.
    virtual Tensor unpack() = 0;
  };

  /// What the tape keeps in place of `tensor`, which a call is about to read or has made; null: the tensor itself. A
  /// tensor may be saved by several calls, and with it others over the same storage. Never asked for bytes of a unit.
  virtual std::unique_ptr<Packed> pack(const Tensor& tensor) = 0;

  /// Calls that are recorded on this thread in a scope save by `policy`, which outlives the scope; of scopes inside
  /// each other the innermost counts.
  class Scope {
   public:
    explicit Scope(SavedPolicy& policy) : scope_(&tape_modes().saved_policy, &policy) {}

   private:
    const ForScope<SavedPolicy*> scope_;
  };

 protected:
  ~SavedPolicy() = default;
};

}  // namespace sherd
