#pragma once
// Tables of things that somebody else keeps alive: what is interned or named goes when its last user goes.
#include <cstddef>
#include <memory>
#include <string>
#include <unordered_map>

#include "runtime/tensor/error.h"

namespace sherd {

/// Things by a key, in one look-up, of which nothing is kept alive. Entries of what is gone are dropped when as many
/// were added as there are, so that a program that makes and drops models does not fill it. Not synchronized.
template <class Key, class T>
class Living {
 public:
  /// The living thing of this key of which `is_it` holds; null if there is none. A key may stand for several: a hash.
  template <class Predicate>
  std::shared_ptr<const T> find(const Key& key, const Predicate& is_it) const {
    const auto [first, last] = by_key_.equal_range(key);
    for (auto entry = first; entry != last; ++entry)
      if (auto living = entry->second.lock(); living && is_it(*living)) return living;
    return nullptr;
  }
  std::shared_ptr<const T> find(const Key& key) const {
    return find(key, [](const T&) { return true; });
  }
  /// In the place of one that is gone, if there is such a one of this key.
  void add(const Key& key, const std::shared_ptr<const T>& living) {
    if (by_key_.size() >= 2 * num_kept_ + kFewest) {
      std::erase_if(by_key_, [](const auto& entry) { return entry.second.expired(); });
      num_kept_ = by_key_.size();
    }
    const auto [first, last] = by_key_.equal_range(key);
    for (auto entry = first; entry != last; ++entry) {
      if (!entry->second.expired()) continue;
      entry->second = living;
      return;
    }
    by_key_.emplace(key, living);
  }
  /// Entries, with those of what is gone and has not been dropped yet.
  std::size_t size() const { return by_key_.size(); }
  std::size_t count_living() const {
    std::size_t count = 0;
    for (const auto& entry : by_key_) count += entry.second.expired() ? 0 : 1;
    return count;
  }

 private:
  static constexpr std::size_t kFewest = 64;
  std::unordered_multimap<Key, std::weak_ptr<const T>> by_key_;
  std::size_t num_kept_ = 0;
};

/// `name`, or with "~2" after it, "~3", ..., if living ones are called so.
template <class T>
std::string free_name(const Living<std::string, T>& living, const std::string& name) {
  std::string result = name;
  for (int i = 2; living.find(result); ++i) result = fmt::format("{}~{}", name, i);
  return result;
}

}  // namespace sherd
