#pragma once
// A group with all abilities over a library that moves equally many elements of one dtype (bare_group.h):
//
//   all_gather       [cast to the own place]   one call; unequal parts: a broadcast per rank   [unpack inner dims]
//   reduce_scatter   [pack, cast to the wire]  one call; unequal parts: a reduction per rank    [scale, cast, add]
//                    or, in the order of sum_order.h: exchange_sum.h
//
// Each bracket is one launch for a list, on the queue's own stream; a list is one launch of the library.
#include <memory>

#include "runtime/comm/group/bare_group.h"
#include "runtime/comm/group/process_group.h"

namespace sherd {

/// How floats are added. `ordered`: as a tree (sum_order.h), the same bits as on the host and with any number of
/// devices. `fast`: as the library likes, which may differ between sizes, topologies and its versions.
enum class SumsBy : std::uint8_t { ordered, fast };

/// Collectives of memory that `bare` supports are composed; those of other memory go to its host group. Temporary
/// memory comes from the rank's allocator of the device, as "communication", and is lent to the queue. What no group
/// does is refused on every rank as by other groups: averages of integers, sums of bool, casts between integers.
std::shared_ptr<ProcessGroup> make_composed_group(std::shared_ptr<comm::BareGroup> bare, SumsBy sums = SumsBy::ordered);

}  // namespace sherd
