#pragma once
// What the tape keeps of a tensor: a handle and the version of its bytes. (An output is saved without its history,
// which would be a cycle.) Bytes that belong to a
// unit (gathered parameters) are not kept alive; using them asks the owner to make them present.
#include "runtime/op/tensor.h"

namespace sherd {

class SavedTensor {
 public:
  SavedTensor() = default;
  explicit SavedTensor(const Tensor& tensor);
  bool defined() const { return tensor_.defined(); }
  /// The tensor, present. Throws Error if its bytes were written since it was saved.
  const Tensor& unpack() const;

 private:
  Tensor tensor_;
  std::uint32_t version_ = 0;
};

}  // namespace sherd
