#pragma once
// Units of other ranks must be the same: one that a rank has alone, or gathers where others do not, waits for peers
// that never come. So before units communicate for the first time their ranks compare what makes them what they are:
//
//   facts   unit "blocks.0": the mesh is mesh(dp=2), the strategy full_shard, parameter 0 blocks.0.w f32[8,4]{0: dp}
//   hash    compared over one axis of the meshes after the other: of the units that communicate over it
//   where hashes differ: the facts themselves, and the first difference is what every rank raises
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "runtime/comm/group/process_group.h"

namespace sherd::nn {

class Wrap;

/// What ranks compare of a unit: settings by name, in one order on all ranks. All of it is of global shapes and
/// layouts: local ones differ between ranks of tensor parallelism.
struct UnitFacts {
  std::string unit;
  std::vector<std::pair<std::string, std::string>> settings;
};

/// Ranks that say different things: the first unit and setting in which they do, and on which ranks. Empty if they say
/// the same. `ranks` are their numbers for the text, one for each of `said`.
std::string first_difference(std::span<const int> ranks, std::span<const std::vector<UnitFacts>> said);

/// Compares the units of these calls, in this order, with other ranks' over every axis of their meshes; or over
/// `groups` alone, in their order, which is the same on all ranks. Of an axis those units count that communicate over
/// it: ranks along another one may have experts of their own. Blocks until they have come; on the queue "gather",
/// whose lane other ranks are in if they do not compare: then they are told so. Throws Error on all ranks of these axes
/// if units differ, and aborts the root group, so that ranks that wait elsewhere raise it too. Local, and nothing, on
/// ghost ranks and where nobody shares an axis. Not counted as communication.
void agree_on_units(std::span<Wrap* const> hooks);
void agree_on_units(std::span<Wrap* const> hooks, std::span<ProcessGroup* const> groups);

}  // namespace sherd::nn
