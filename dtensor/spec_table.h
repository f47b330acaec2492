#pragma once
// The layouts of one mesh, on its rank: equal ones are one object.
#include <compare>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string_view>
#include <vector>

#include "dtensor/spec.h"
#include "runtime/tensor/no_copy.h"

namespace sherd {

class SpecTable : NoCopy {
 public:
  struct Key {
    std::vector<std::vector<int>> axes_of_dim;           ///< per tensor dim, see Spec
    std::vector<int> partial;                            ///< per axis: the ReduceKind, or -1
    std::vector<std::vector<std::int64_t>> rows_of_dim;  ///< per tensor dim, of splits that list sizes
    auto operator<=>(const Key&) const = default;
    bool lists_rows() const { return !rows_of_dim.empty(); }
  };

  /// Layouts of tables that have ended, the last ones of a rank: of a plain pointer to one it can still be said that
  /// its mesh is gone.
  using Former = std::deque<SpecRef>;
  explicit SpecTable(std::shared_ptr<Former> former) : former_(std::move(former)) {}

  /// The layout of that key; `make` is called if there is none, and returns a new one.
  template <class Make>
  const Spec* find_or_make(Key key, const Make& make) {
    const std::lock_guard lock(mutex_);
    ++num_asked_;
    const auto known = layouts_.find(key);
    if (known == layouts_.end()) return add(std::move(key), make());
    known->second.asked = num_asked_;
    return known->second.layout;
  }
  ~SpecTable();

  /// Layouts of that name().
  std::vector<LayoutRef> called(std::string_view name) const;
  std::size_t size() const;

 private:
  struct Entry {
    SpecRef layout;
    std::uint64_t asked = 0;  // num_asked_ when it was asked for last
  };
  const Spec* add(Key key, const Spec* made);
  void drop_unused();

  static constexpr std::size_t kFewest = 64, kMostFormer = 1000;
  const std::shared_ptr<Former> former_;
  mutable std::mutex mutex_;
  std::map<Key, Entry> layouts_;
  std::uint64_t num_asked_ = 0;
  std::size_t num_listed_ = 0, num_kept_ = 0;  // that list rows: now, and after the last look at who holds them
};

}  // namespace sherd
