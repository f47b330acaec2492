#pragma once
// The inputs of a call as infer sees them: their metadata only, so that a call can be inferred where no tensor exists.
#include <concepts>
#include <cstddef>
#include <span>

#include "runtime/op/core/tensor.h"

namespace sherd {

/// A view of a list of tensors, whose metadata is read where it lies, or of a list of metadata: nothing is copied. The
/// list must outlive it.
class MetaList {
 public:
  MetaList() = default;
  template <class List>
    requires std::convertible_to<const List&, std::span<const Tensor>>
  MetaList(const List& list) {
    const std::span<const Tensor> tensors(list);
    tensors_ = tensors.data();
    size_ = tensors.size();
  }
  template <class List>
    requires std::convertible_to<const List&, std::span<const TensorMeta>>
  MetaList(const List& list) {
    const std::span<const TensorMeta> metas(list);
    metas_ = metas.data();
    size_ = metas.size();
  }

  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  /// Input i; kAbsent if the call leaves it out or has fewer inputs.
  const TensorMeta& operator[](std::size_t i) const {
    if (i >= size_) return kAbsent;
    return tensors_ ? tensors_[i].meta() : metas_[i];
  }

  class Iterator {
   public:
    Iterator(const MetaList& list, std::size_t i) : list_(list), i_(i) {}
    const TensorMeta& operator*() const { return list_[i_]; }
    Iterator& operator++() {
      ++i_;
      return *this;
    }
    bool operator!=(const Iterator& other) const { return i_ != other.i_; }

   private:
    const MetaList& list_;
    std::size_t i_;
  };
  Iterator begin() const { return {*this, 0}; }
  Iterator end() const { return {*this, size_}; }

 private:
  const Tensor* tensors_ = nullptr;  // one of the two is null
  const TensorMeta* metas_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace sherd
