#pragma once
// A bounded table of results that can be made again: the ones that were asked for longest ago go first.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

namespace sherd {

/// At most `most` results by the hash of what each was made for. A reference to one is valid until `most` / 2 others
/// have been asked for. Not synchronized.
template <class T>
class Recent {
 public:
  explicit Recent(std::size_t most) : most_(most) {}

  /// The result of this hash of which `is_it` holds; null if there is none.
  template <class Predicate>
  const T* find(std::uint64_t hash, const Predicate& is_it) {
    const auto [first, last] = by_hash_.equal_range(hash);
    for (auto entry = first; entry != last; ++entry) {
      if (!is_it(*entry->second.result)) continue;
      entry->second.asked = ++num_asked_;
      return entry->second.result.get();
    }
    return nullptr;
  }
  const T& add(std::uint64_t hash, std::unique_ptr<const T> result) {
    if (by_hash_.size() >= most_) drop_oldest();
    return *by_hash_.emplace(hash, Entry{std::move(result), ++num_asked_})->second.result;
  }
  void clear() { by_hash_.clear(); }
  std::size_t size() const { return by_hash_.size(); }

 private:
  struct Entry {
    std::unique_ptr<const T> result;
    std::uint64_t asked;  // num_asked_ when it was asked for last
  };

  // A sixteenth at a time, so that a look at all entries costs each new one sixteen.
  void drop_oldest() {
    std::vector<std::uint64_t> asked;
    asked.reserve(by_hash_.size());
    for (const auto& [hash, entry] : by_hash_) asked.push_back(entry.asked);
    const auto bound = asked.begin() + static_cast<std::ptrdiff_t>(asked.size() / 16);
    std::ranges::nth_element(asked, bound);
    std::erase_if(by_hash_, [&](const auto& known) { return known.second.asked <= *bound; });
  }

  const std::size_t most_;
  std::unordered_multimap<std::uint64_t, Entry> by_hash_;
  std::uint64_t num_asked_ = 0;
};

}  // namespace sherd
