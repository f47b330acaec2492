#pragma once
// Placement of a tensor along one mesh axis, a closed set: Shard, Replicate, Partial. *axis* = mesh, *dim* = tensor.
#include <cstdint>
#include <string>

#include "runtime/comm/group/process_group.h"

namespace sherd {

struct Placement {
  enum class Kind : std::uint8_t { replicate, shard, partial };
  Kind kind = Kind::replicate;
  int dim = 0;                          ///< shard: the tensor dim that is split
  ReduceKind reduce = ReduceKind::sum;  ///< partial: the reduction that gives the value

  bool is_replicate() const { return kind == Kind::replicate; }
  bool is_shard() const { return kind == Kind::shard; }
  bool is_shard(int d) const { return kind == Kind::shard && dim == d; }
  bool is_partial() const { return kind == Kind::partial; }
  bool is_partial(ReduceKind r) const { return kind == Kind::partial && reduce == r; }
  friend bool operator==(const Placement&, const Placement&) = default;
};

/// Rank r holds chunk r of `dim`: ceil(n/W) rows each, the last ranks fewer or none.
inline Placement Shard(int dim) { return {Placement::Kind::shard, dim, ReduceKind::sum}; }
/// Every rank holds the same data.
inline Placement Replicate() { return {}; }
/// Every rank holds a partial value; the tensor is their reduction.
inline Placement Partial(ReduceKind reduce = ReduceKind::sum) { return {Placement::Kind::partial, 0, reduce}; }

/// "S0", "R", "P", "Pmax".
std::string to_string(const Placement& placement);

}  // namespace sherd
