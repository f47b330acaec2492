#pragma once
// The sum that reductions promise, as a binary counter finds it: two sums of as many leaves are added at once, and what is
// left in the end from the last leaf on.
#include <cstddef>
#include <utility>
#include <vector>

namespace sherd::testing {

template <class T, class Add>
T tree_sum(const std::vector<T>& leaves, const Add& add) {
  std::vector<std::pair<std::size_t, T>> sums;  // of how many leaves
  const auto join = [&] {
    auto newer = std::move(sums.back());
    sums.pop_back();
    sums.back().second = add(sums.back().second, newer.second);
    sums.back().first += newer.first;
  };
  for (const T& leaf : leaves) {
    sums.emplace_back(1, leaf);
    while (sums.size() > 1 && sums[sums.size() - 2].first == sums.back().first) join();
  }
  while (sums.size() > 1) join();
  return sums.front().second;
}

}  // namespace sherd::testing
