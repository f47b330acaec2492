#pragma once
// Which parameters of a call of fully_shard become which units, and which are left alone.
#include <cstdint>
#include <string>
#include <vector>

#include "nn/module.h"
#include "nn/parallel/shard/unit/policy.h"

namespace sherd::nn {

/// One unit to be.
struct UnitMembers {
  std::string name;  ///< of the call; "/replicated" or "/" and the axes of its mesh behind it where it is not the first
  DataMesh data;
  std::vector<Parameter*> parameters{};
  std::vector<ParameterTypes> types{};  ///< of each
  bool is_replicated = false;           ///< over its whole mesh, because they are small
};

/// Elements of a parameter's gathered tensor, on average over the ranks that its layout splits it over and rounded up:
/// the same number on all of them, where their own parts may differ by a row.
std::int64_t elements_per_rank(const Parameter& parameter);

/// Throws Error if a unit has one of the parameters already, or one is null.
void check_ignored(const std::vector<const Parameter*>& ignored);

/// The units of these parameters: one for each mesh, and one for those of a mesh that UnitPolicy::replicate_below_bytes
/// leaves whole; in both the order of `parameters`, the unit of `mesh` first. Errors: those of DataMesh and of
/// check_policy() for each mesh, and of types_for(); a negative number of bytes.
std::vector<UnitMembers> unit_members(const std::string& name, const std::vector<Parameter*>& parameters,
                                      const DeviceMesh& mesh, const UnitPolicy& policy);

}  // namespace sherd::nn
