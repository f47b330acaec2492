#pragma once
// What a rank sends of a call, as bytes, and what it makes of what all have sent: a reduction over the ranks' elements
// in their order, as every host group computes it.
#include <span>
#include <string>
#include <string_view>

#include "runtime/comm/group/collective.h"

namespace sherd::comm {

/// Throws Error if the call is wrong.
void check_parts(const Collective& call, int rank, int size);
/// What `rank` has for `peer`; for all alike but of reduce_scatter and all_to_all.
std::string bytes_for(const Collective& call, int peer, int rank);
/// Writes the results of `rank`. `received`, by rank, has its own bytes too.
void take_bytes(const Collective& call, std::span<const std::string> received, int rank);
/// The elements of a send, and what a recv makes of them.
std::string flat_bytes(const Collective& call);
void take_flat(const Collective& call, std::string_view bytes);

}  // namespace sherd::comm
