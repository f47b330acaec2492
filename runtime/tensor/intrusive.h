#pragma once
// Intrusive reference counting: one word inside the object, so that a handle is one pointer wide and
// "am I the only owner" is one load. Donation of buffers rests on that question.
#include <atomic>
#include <cstdint>
#include <utility>

#include "runtime/tensor/no_copy.h"

namespace sherd {

class RefCounted : NoCopy {
 public:
  /// The first reference to a fresh object, which no other thread knows yet.
  void retain_fresh() const { refs_.store(1, std::memory_order_relaxed); }
  void retain() const { refs_.fetch_add(1, std::memory_order_relaxed); }
  /// True if this was the last reference. The only owner needs no read-modify-write to know that it is the last.
  bool drop() const { return use_count() == 1 || refs_.fetch_sub(1, std::memory_order_acq_rel) == 1; }
  std::uint32_t use_count() const { return refs_.load(std::memory_order_acquire); }

 protected:
  ~RefCounted() = default;

 private:
  mutable std::atomic<std::uint32_t> refs_{0};
};

/// Owning handle. T provides `static void destroy(T*)`.
template <class T>
class Ref {
 public:
  Ref() = default;
  explicit Ref(T* object) : object_(object) {
    if (object_) object_->retain();
  }
  /// The first handle on an object that was just made.
  static Ref fresh(T* object) {
    Ref ref;
    ref.object_ = object;
    object->retain_fresh();
    return ref;
  }
  Ref(const Ref& other) : Ref(other.object_) {}
  Ref(Ref&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  Ref& operator=(Ref other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }
  ~Ref() {
    if (object_ && object_->drop()) T::destroy(object_);
  }
  T* get() const { return object_; }
  /// The caller owns the reference now.
  T* release() { return std::exchange(object_, nullptr); }
  T* operator->() const { return object_; }
  T& operator*() const { return *object_; }
  explicit operator bool() const { return object_ != nullptr; }
  friend bool operator==(const Ref& a, const Ref& b) { return a.object_ == b.object_; }

 private:
  T* object_ = nullptr;
};

}  // namespace sherd
