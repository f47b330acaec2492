#pragma once
// What the tape keeps of a tensor: a handle and the version of its bytes. (An output is saved without its history,
// which would be a cycle.) Bytes that belong to a
// unit (gathered parameters) are not kept alive; using them asks the owner to make them present.
#include <utility>

#include "runtime/op/tensor.h"

namespace sherd {

class SavedTensor {
 public:
  SavedTensor() = default;
  explicit SavedTensor(const Tensor& tensor);
  SavedTensor(SavedTensor&& other) noexcept
      : tensor_(std::move(other.tensor_)), version_(other.version_), is_owned_(std::exchange(other.is_owned_, false)) {}
  SavedTensor& operator=(SavedTensor&& other) noexcept {
    std::swap(tensor_, other.tensor_);
    std::swap(version_, other.version_);
    std::swap(is_owned_, other.is_owned_);
    return *this;
  }
  ~SavedTensor() {
    if (is_owned_) [[unlikely]]
      forget();
  }
  bool defined() const { return tensor_.defined(); }
  /// The tensor, present. Throws Error if its bytes were written since it was saved.
  const Tensor& unpack() const;

 private:
  void forget() noexcept;
  Tensor tensor_;
  std::uint32_t version_ = 0;
  bool is_owned_ = false;  // counted in Storage::num_saved
};

}  // namespace sherd
