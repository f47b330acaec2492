#pragma once
// Which modules become units of fully_shard. A rule finds them, shard_units() wraps them and the root after them:
//
//   shard_units(model, mesh["dp"], units_of_type<Gpt::Block>());      // a unit per block, the rest is the root's
//   shard_units(model, mesh["dp"], units_of_bytes(256 << 20));        // as few as fit, of about equal size
//   shard_units(model, mesh["dp"], units_by("fine"));                 // by name, as `sherd train --units` does
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "nn/parallel/shard/wrap/fully_shard.h"

namespace sherd::nn {

/// The modules of one unit.
using UnitModules = std::vector<Module*>;

/// Finds the units of a model, the model itself aside: inner ones before those around them. It looks at the module tree
/// alone, so all ranks find the same.
using UnitRule = std::function<std::vector<UnitModules>(Module& model, const UnitPolicy& policy)>;

/// A unit for every module below the model for which `is_unit` is true; `what` names them in messages. Error if there
/// is none, or one is a container.
UnitRule units_where(std::string what, std::function<bool(const Module&)> is_unit);
/// A unit for every module of class T, or of one derived from it.
template <class T>
UnitRule units_of_type() {
  return units_where("modules of that type", [](const Module& m) { return dynamic_cast<const T*>(&m) != nullptr; });
}
/// A unit for every module that has at least `count` elements of parameters when modules below it have taken theirs
/// (FSDP1's policy by size). Parameters that are tied to a module outside go to the next unit around both. Error if
/// `count` < 1.
UnitRule units_of_parameters(std::int64_t count);
/// As few units as hold at most `bytes` each when gathered (in the policy's dtype), filled with whole modules in their
/// order, then balanced: the largest is as small as that number of units allows. A module that is larger is taken
/// apart; one that cannot be is a unit alone, beyond the budget. Tied parameters as above. Error if `bytes` < 1.
UnitRule units_of_bytes(std::int64_t bytes);
/// These, in this order.
UnitRule units_of_modules(std::vector<UnitModules> units);
/// By name:
///   coarse  the model is one unit: fewest launches, all of it is gathered at a time
///   block   a unit per block, the modules in the model's lists
///   fine    a unit per module of a block that holds a matrix (attention, MLP), what is left of a block is one more
///   parameters=N, bytes=N  units_of_parameters(N), units_of_bytes(N): bytes=32e6, bytes=32MB
/// Error that names all of them for other names. Error when applied: block or fine of a model without a list.
UnitRule units_by(std::string_view name);

/// fully_shard() on what `rule` finds, then on the model, with the same policy; but reshard_after_forward is that of
/// inner units, the root keeps its default. Returns the handles in this order, the root's last. Modules that are
/// wrapped already stay as they are. Errors, on every rank: those of the rule and of fully_shard(), a model that is
/// wrapped already; all come before the first module is wrapped. Not so OutOfMemory, for shards of parameters that have
/// values: it is of the rank that lacks memory, and leaves a model in part wrapped, to be made anew, on meta at best.
/// Communication: that of fully_shard().
std::vector<UnitHandle> shard_units(Module& model, const DeviceMesh& mesh, const UnitRule& rule,
                                    const UnitPolicy& policy = {});

}  // namespace sherd::nn
