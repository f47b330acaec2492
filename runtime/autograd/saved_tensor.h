#pragma once
// What the tape keeps of a tensor: a handle and the version of its bytes. (An output is saved without its history,
// which would be a cycle.) Bytes that belong to a
// unit (gathered parameters) are not kept alive; using them asks the owner to make them present.
#include <memory>
#include <utility>

#include "runtime/autograd/saved_policy.h"
#include "runtime/op/core/tensor.h"

namespace sherd {

class SavedTensor {
 public:
  SavedTensor() : tensor_() {}
  explicit SavedTensor(const Tensor& tensor);
  explicit SavedTensor(std::unique_ptr<SavedPolicy::Packed> packed) : packed_(packed.release()), form_(Form::packed) {}
  SavedTensor(SavedTensor&& other) noexcept
      : tensor_(), version_(other.version_), form_(std::exchange(other.form_, Form::plain)) {
    if (form_ == Form::packed) [[unlikely]] {
      packed_ = other.packed_;
      std::construct_at(&other.tensor_);
    } else {
      tensor_ = std::move(other.tensor_);
    }
  }
  SavedTensor& operator=(SavedTensor&& other) noexcept {
    if (this == &other) return *this;
    std::destroy_at(this);
    return *std::construct_at(this, std::move(other));
  }
  ~SavedTensor() {
    if (form_ != Form::plain) [[unlikely]]
      forget();
    else tensor_.~Tensor();
  }
  /// Where the bytes of a tensor are, those of the local part if it is distributed; null on meta.
  static const Ref<Storage>& bytes_of(const Tensor& t) {
    return t.is_distributed() ? t.impl()->local->storage : t.storage();
  }
  bool defined() const { return form_ == Form::packed || tensor_.defined(); }
  /// Brings its bytes back; null: nobody has to.
  StorageOwner* owner() const { return form_ == Form::owned ? bytes_of(tensor_)->owner : nullptr; }
  /// Set of a tensor with an owner.
  const Ref<Storage>& bytes() const { return bytes_of(tensor_); }
  /// The tensor, present. Throws Error if its bytes were written since it was saved.
  const Tensor& unpack();

 private:
  enum class Form : std::uint8_t {
    plain,
    owned,  // counted in Storage::num_saved
    packed,
  };
  void forget() noexcept;
  // One word: nodes have several of these.
  union {
    Tensor tensor_;
    SavedPolicy::Packed* packed_;
  };
  std::uint32_t version_ = 0;
  Form form_ = Form::plain;
};

}  // namespace sherd
