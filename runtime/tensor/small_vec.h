#pragma once
// A vector whose first N elements live inside it: op inputs, outputs and edges almost never allocate.
#include <cstddef>
#include <initializer_list>
#include <memory>
#include <new>
#include <span>
#include <utility>

namespace sherd {

template <class T, std::size_t N>
class SmallVec {
 public:
  SmallVec() = default;
  SmallVec(std::initializer_list<T> values) : SmallVec(std::span<const T>(values.begin(), values.size())) {}
  explicit SmallVec(std::span<const T> values) {
    reserve(values.size());
    for (const T& v : values) push_back(v);
  }
  SmallVec(const SmallVec& other) : SmallVec(std::span<const T>(other)) {}
  SmallVec(SmallVec&& other) noexcept { take(other); }
  SmallVec& operator=(SmallVec other) noexcept {
    clear_and_free();
    take(other);
    return *this;
  }
  ~SmallVec() { clear_and_free(); }

  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  T* data() { return heap_ ? heap_ : inline_data(); }
  const T* data() const { return heap_ ? heap_ : inline_data(); }
  T* begin() { return data(); }
  T* end() { return data() + size_; }
  const T* begin() const { return data(); }
  const T* end() const { return data() + size_; }
  T& operator[](std::size_t i) { return data()[i]; }
  const T& operator[](std::size_t i) const { return data()[i]; }
  T& back() { return data()[size_ - 1]; }

  void reserve(std::size_t count) {
    if (count > capacity_) [[unlikely]]
      grow(count);
  }
  template <class... Args>
  T& emplace_back(Args&&... args) {
    if (size_ == capacity_) [[unlikely]]
      grow(2 * capacity_);
    T* place = std::construct_at(data() + size_, std::forward<Args>(args)...);
    ++size_;
    return *place;
  }
  void push_back(T value) { emplace_back(std::move(value)); }
  void resize(std::size_t count) {
    reserve(count);
    while (size_ < count) emplace_back();
    while (size_ > count) std::destroy_at(data() + --size_);
  }
  void clear() { resize(0); }

 private:
  [[gnu::noinline]] void grow(std::size_t count) {
    T* fresh = std::allocator<T>().allocate(count);
    std::uninitialized_move(begin(), end(), fresh);
    std::destroy(begin(), end());
    if (heap_) std::allocator<T>().deallocate(heap_, capacity_);
    heap_ = fresh;
    capacity_ = count;
  }
  T* inline_data() { return std::launder(reinterpret_cast<T*>(inline_)); }
  const T* inline_data() const { return std::launder(reinterpret_cast<const T*>(inline_)); }
  void clear_and_free() {
    std::destroy(begin(), end());
    if (heap_) std::allocator<T>().deallocate(heap_, capacity_);
    heap_ = nullptr;
    size_ = 0;
    capacity_ = N;
  }
  void take(SmallVec& other) {
    if (other.heap_) {
      heap_ = std::exchange(other.heap_, nullptr);
      size_ = std::exchange(other.size_, 0);
      capacity_ = std::exchange(other.capacity_, N);
    } else {
      std::uninitialized_move(other.begin(), other.end(), inline_data());
      size_ = other.size_;
      other.clear();
    }
  }

  T* heap_ = nullptr;
  std::size_t size_ = 0;
  std::size_t capacity_ = N;
  alignas(T) std::byte inline_[N * sizeof(T)];
};

}  // namespace sherd
