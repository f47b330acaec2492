#pragma once
// Attributes of collectives.
#include <cstddef>
#include <cstdint>
#include <string>

#include "runtime/comm/group/group_names.h"
#include "runtime/op/attrs/attr_kind.h"

namespace sherd {

/// Results that nobody touches keep their memory until this many others were asked for.
inline constexpr std::size_t kMaxCollectivesInFlight = 8;

struct CollectiveAttrs {
  std::string group;      ///< the name by which this rank knows it: name_group()
  int kind = 0;           ///< ReduceKind of reductions
  int root = 0;           ///< broadcast
  std::int64_t rows = 0;  ///< all_gather, all_to_all: size of `dim` in the result, on this rank's slice of other axes
  int dim = 0;            ///< all_gather, all_to_all: gathered; reduce_scatter: scattered
  int split_dim = 0;      ///< all_to_all: scattered
  static constexpr AttrField fields[] = {attr<&CollectiveAttrs::group>("group").optional(),
                                         attr<&CollectiveAttrs::kind>("kind"),
                                         attr<&CollectiveAttrs::root>("root"),
                                         attr<&CollectiveAttrs::rows>("rows").local(),
                                         attr<&CollectiveAttrs::dim>("dim"),
                                         attr<&CollectiveAttrs::split_dim>("split")};
};

/// This rank's group of that name. Error naming it and those that are known if there is none, or none any more.
inline ProcessGroup& group_of(const CollectiveAttrs& attrs) { return group_named(attrs.group); }

}  // namespace sherd
