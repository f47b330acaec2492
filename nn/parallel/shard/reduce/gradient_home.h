#pragma once
// Reduced gradients of a unit that lie outside of memory: grad() of a parameter is its home.
//
//   of earlier passes   home --fetch--> here                        where a pass adds to them
//   of this pass        reduce_start --> here --evict--> home       the reduction's memory goes when that is written
//
// The norm (clip.cpp) and the optimizer read them in pieces.
#include <cstddef>
#include <vector>

#include "nn/parallel/shard/unit/unit_buffers.h"
#include "runtime/op/copy/offload.h"

namespace sherd::nn {

class GradientHome {
 public:
  /// For the pieces of `buffers`, which outlives this and has shards at home with gradients.
  explicit GradientHome(UnitBuffers& buffers);
  ~GradientHome();
  GradientHome(const GradientHome&) = delete;
  GradientHome& operator=(const GradientHome&) = delete;

  /// This rank's part of the gradient of a piece, dense, as a tensor over its home.
  const Tensor& of(std::size_t piece) const { return pieces_[piece]; }
  bool is_home(const Tensor& local) const { return local.storage() == bytes_.storage(); }
  /// After a pass that was left, of whose writes some have failed: nothing of it is wanted. Waits for those under way.
  void forget() noexcept { bytes_.storage()->settle(); }
  /// Starts to bring those of `members`; result[i] is of members[i].
  std::vector<Tensor> fetch(const std::vector<std::size_t>& members) const;
  /// Starts to write what lies in memory, `here[i]` of members[i]: dense tensors that begin at multiples of a cache
  /// line, in buffers that go on to the next one.
  void evict(const std::vector<std::size_t>& members, const std::vector<Tensor>& here) const;

 private:
  OffloadAttrs attrs() const;

  UnitBuffers& buffers_;
  Tensor bytes_;
  std::vector<Tensor> pieces_;
  std::shared_ptr<const NamedStorage> name_;
};

}  // namespace sherd::nn
