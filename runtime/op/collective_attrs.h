#pragma once
// Attributes of collectives.
#include <cstddef>
#include <cstdint>

#include "runtime/op/attr_kind.h"

namespace sherd {

class ProcessGroup;

/// Results that nobody touches keep their memory until this many others were asked for.
inline constexpr std::size_t kMaxCollectivesInFlight = 8;

/// Written as its name; reading asks AttrNames for the group of that name, or, if they know no groups, this rank
/// (comm/group/group_names.h).
template <>
struct AttrValue<ProcessGroup*> : AttrIdentity<ProcessGroup*> {
  static void print(ProcessGroup* const& group, AttrWriter& out);
  static void read(ProcessGroup*& group, AttrReader& in);
};
struct CollectiveAttrs {  ///< the group outlives what is captured with it
  ProcessGroup* group = nullptr;
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

}  // namespace sherd
