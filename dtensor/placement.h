#pragma once
// How a tensor lies along one mesh axis. *axis* = mesh, *dim* = tensor. A closed set: Shard, Replicate, Partial.
#include <cstdint>
#include <string>

#include "runtime/comm/group/process_group.h"

namespace sherd {

struct Placement {
  enum class Kind : std::uint8_t { replicate, shard, partial };
  Kind kind = Kind::replicate;
  int dim = 0;                          ///< shard: the tensor dim that is cut
  ReduceKind reduce = ReduceKind::sum;  ///< partial: how the ranks' values combine

  bool is_replicate() const { return kind == Kind::replicate; }
  bool is_shard() const { return kind == Kind::shard; }
  bool is_shard(int d) const { return kind == Kind::shard && dim == d; }
  bool is_partial() const { return kind == Kind::partial; }
  bool is_partial(ReduceKind r) const { return kind == Kind::partial && reduce == r; }
  friend bool operator==(const Placement&, const Placement&) = default;
};

/// Rank r holds chunk r of `dim`: ceil(n/W) rows each, the last ones fewer or none.
inline Placement Shard(int dim) { return {Placement::Kind::shard, dim, ReduceKind::sum}; }
/// Every rank holds all of it.
inline Placement Replicate() { return {}; }
/// Every rank holds a term; the value is their reduction.
inline Placement Partial(ReduceKind reduce = ReduceKind::sum) { return {Placement::Kind::partial, 0, reduce}; }

/// "S0", "R", "P", "Pmax".
std::string to_string(const Placement& placement);

}  // namespace sherd
