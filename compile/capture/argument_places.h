#pragma once
// Where the arguments of a recorded step lie.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "compile/ir/graph.h"

namespace sherd {

/// Arguments are a program's first values, in their order, so that an argument's index is its value's id.
class ArgumentPlaces {
 public:
  void add(std::uint64_t storage, std::int64_t base, std::int64_t bytes) { list_.push_back({storage, base, bytes}); }
  /// The first argument in the storage; kNoValue if there is none.
  ir::ValueId first_in(std::uint64_t storage) const {
    return find([&](const Place& place) { return place.storage == storage; });
  }
  /// Bytes from the storage's start to the argument's.
  std::int64_t base(ir::ValueId argument) const { return list_[static_cast<std::size_t>(argument)].base; }
  /// The first argument that holds all of a tensor; kNoValue if none does. Two arguments may share a storage (tokens
  /// and targets sliced from one batch); any that covers the tensor will do, because a replay requires the same
  /// sharing.
  ir::ValueId argument_of(const Tensor& tensor) const {
    const auto [first, last] = ir::reference(tensor, 0).extent();
    return find([&, first = first, last = last](const Place& place) {
      return place.storage == tensor.storage()->id() && first >= place.base && last <= place.base + place.bytes;
    });
  }
  /// Error for a tensor that lies partly in an argument. Beside its arguments a batch is a tensor like any other from
  /// outside.
  void check_within(const Tensor& tensor) const {
    if (argument_of(tensor) != ir::kNoValue) return;
    const auto [first, last] = ir::reference(tensor, 0).extent();
    const ir::ValueId cut = find([&, first = first, last = last](const Place& place) {
      return place.storage == tensor.storage()->id() && last > place.base && place.base + place.bytes > first;
    });
    check(cut == ir::kNoValue,
          "{} lies partly in argument {} of the captured step and partly beside it, so a replay could not tell what of "
          "it to read from the argument: pass all of it as an argument, or use a copy",
          tensor, cut);
  }

 private:
  struct Place {
    std::uint64_t storage;
    std::int64_t base, bytes;
  };
  template <class Fits>
  ir::ValueId find(const Fits& fits) const {
    const auto found = std::ranges::find_if(list_, fits);
    return found == list_.end() ? ir::kNoValue : static_cast<ir::ValueId>(found - list_.begin());
  }
  std::vector<Place> list_;
};

}  // namespace sherd
