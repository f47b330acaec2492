#pragma once
// Units of other ranks must be the same: one that a rank has alone, or gathers where others do not, waits for peers
// that never come. So before units communicate for the first time their ranks compare facts (agree.h) of what makes
// them what they are, over one axis of the meshes after the other: of the units that communicate over it.
//
//   unit 0 is "blocks.0"    unit "blocks.0": the strategy is full_shard    unit "blocks.0": prefetch is true   ...
#include <span>
#include <string>
#include <string_view>

#include "runtime/comm/group/agree.h"

namespace sherd::nn {

class Wrap;

/// Adds the facts of the unit called `name` to those of units, `num_units` of which come before it: settings by name,
/// in one order on all ranks. All of it is of global shapes and layouts: local ones differ between ranks of tensor
/// parallelism.
void add_unit(Facts& units, int num_before, std::string_view name, const Facts& settings);

/// Compares the units of these calls, in this order, with other ranks' over every axis of their meshes; or over
/// `groups` alone, in their order, which is the same on all ranks. Of an axis those units count that communicate over
/// it: ranks along another one may have experts of their own. Blocks until they have come; on the queue "gather",
/// whose lane other ranks are in if they do not compare: then they are told so. Throws Error on all ranks of these axes
/// if units differ, and aborts the root group, so that ranks that wait elsewhere raise it too. Local, and nothing, on
/// ghost ranks and where nobody shares an axis. Not counted as communication.
void agree_on_units(std::span<Wrap* const> hooks);
void agree_on_units(std::span<Wrap* const> hooks, std::span<ProcessGroup* const> groups);

}  // namespace sherd::nn
