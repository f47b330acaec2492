#pragma once
// Calls of fully_shard() in two halves: they are planned, which finds every error, and then their modules are wrapped.
// So of several calls (shard_units) either all wrap or none does; unless memory runs out while they wrap.
#include <cstddef>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "nn/parallel/shard/unit/unit_layout.h"
#include "nn/parallel/shard/wrap/fully_shard.h"
#include "nn/parallel/shard/wrap/unit_members.h"

namespace sherd::nn {

/// A call that no error is left in.
struct PlannedCall {
  /// One unit to be.
  struct Part {
    UnitMembers members;
    PlacedUnit placed{};
    std::optional<DeviceMesh> split{};  ///< see split_of()
  };
  std::string name;  ///< paths of its modules, joined by "+"
  std::vector<Module*> modules;
  DataMesh data;
  UnitPolicy policy;
  std::vector<Part> parts{};
};

/// The name of its policy's preset, or what it shards where there is none.
std::string strategy_of(const PlannedCall& call);

class UnitTable {
 public:
  /// One more call, as if those before it had wrapped their modules; their `ignored` parameters are the same. Errors
  /// and communication: those of fully_shard(). Values are looked at, and stay as they are.
  void add(const std::vector<Module*>& modules, const DeviceMesh& mesh, const UnitPolicy& policy);
  /// Drops the offload of calls, smallest first, whose shards fit into the budget, which is one for all calls. Error if
  /// it is negative.
  void keep_in_memory(std::int64_t budget);
  /// Makes the units of all calls, in their order. Local. OutOfMemory where parameters have values and there is no
  /// memory for their shards: then those before it stay.
  std::vector<UnitHandle> wrap();

 private:
  bool is_or_will_be_wrapped(const Module& module) const;
  const std::string* owner_above(const Module& module, const Parameter& parameter) const;
  void check_inside_out(const Module& wrapped, const Module& module) const;
  void collect_free(Module& module, std::set<const Parameter*>& seen, std::vector<Parameter*>& out) const;

  std::vector<PlannedCall> calls_;
  std::map<const Parameter*, std::size_t> takers_;  // which call has it
};

/// The mesh whose last axis a unit of `data` reshards to after forward; unset: to all ranks, or not at all. Errors and
/// communication: those of split_for_slices().
std::optional<DeviceMesh> split_of(const DataMesh& data, bool is_replicated, ReshardAfterForward value);

}  // namespace sherd::nn
