#pragma once
// What runtime knows of a distributed tensor: it has a layout. `dtensor` implements it; device kernels
// never meet one, because the dist layer of the dispatcher unwraps.
#include <string>

#include "runtime/tensor/intrusive.h"
#include "runtime/tensor/shape.h"

namespace sherd {

/// A layout over a mesh. Equal layouts are one object while it lives, so equality is identity. Tensors, the tape,
/// attributes, plans and recordings hold theirs; so must whoever else keeps one for longer than a call.
class Distributed : public RefCounted {
 public:
  static void destroy(const Distributed* layout) { delete layout; }
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
  virtual ~Distributed() = default;
};

/// A layout that is kept; reads as a plain pointer, which may be null.
template <class Layout>
class LayoutHandle {
 public:
  LayoutHandle(const Layout* layout = nullptr) : layout_(layout) {}
  operator const Layout*() const { return layout_.get(); }
  const Layout* operator->() const { return layout_.get(); }
  const Layout* get() const { return layout_.get(); }

 private:
  Ref<const Layout> layout_;
};
using LayoutRef = LayoutHandle<Distributed>;

/// The two halves of a LayoutRef, for where a plain pointer in a struct holds its layout; null is none.
inline void hold_layout(const Distributed* layout) {
  if (layout) layout->retain();
}
inline void drop_layout(const Distributed* layout) {
  if (layout && layout->drop()) Distributed::destroy(layout);
}

}  // namespace sherd
