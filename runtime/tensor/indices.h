#pragma once
// Numbers to go through: for (const std::size_t i : indices(nodes)), for (const int d : up_to(rank)).
#include <algorithm>
#include <concepts>

namespace sherd {

/// The numbers from `begin` up to `end`, without it; none where that is not more.
template <std::integral T>
class Numbers {
 public:
  class Iterator {
   public:
    explicit constexpr Iterator(T at) : at_(at) {}
    constexpr T operator*() const { return at_; }
    constexpr Iterator& operator++() {
      ++at_;
      return *this;
    }
    friend constexpr bool operator==(const Iterator&, const Iterator&) = default;

   private:
    T at_;
  };

  constexpr Numbers(T begin, T end) : begin_(begin), end_(std::max(begin, end)) {}
  constexpr Iterator begin() const { return Iterator(begin_); }
  constexpr Iterator end() const { return Iterator(end_); }

 private:
  T begin_, end_;
};

/// 0, 1, ... below `count`, which is looked at once.
template <std::integral T>
constexpr Numbers<T> up_to(T count) {
  return {0, count};
}
/// Numbers the elements of `items`, as many as it has when the loop begins.
constexpr auto indices(const auto& items) { return up_to(items.size()); }

}  // namespace sherd
