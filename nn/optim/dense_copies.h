#pragma once
// Rows of optimizers write dense memory. A value with strides (a transposed weight, a column of something larger) is
// updated in a dense copy, which is stored after.
#include <utility>
#include <vector>

#include "runtime/op/core/tensor.h"

namespace sherd::nn {

class DenseCopies {
 public:
  /// `value` as rows write it: itself, or a copy that lies alike on the mesh, one however often it is asked for.
  Tensor of(const Tensor& value);
  /// Puts what the copies hold now into the values.
  void store() const;

 private:
  std::vector<std::pair<Tensor, Tensor>> copies_;  // of each: the value, and its copy; plain
};

/// Whether this rank's elements lie in row-major order without gaps.
inline bool is_dense(const Tensor& tensor) {
  const TensorImpl& impl = *tensor.impl();
  return impl.local ? impl.local.get()->contiguous : impl.contiguous;
}
/// Whether two elements of a plain tensor lie on the same bytes, as in what expand() returns.
bool shares_bytes(const Tensor& tensor);

}  // namespace sherd::nn
