#pragma once
// Which runs are compared: the default one, and others that differ from it in one setting each, or in all ways.
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tools/table/table.h"
#include "tools/train/config.h"

namespace sherd::plan {

using namespace train;

using table::Row;

/// A run to make. The row's knob is the key whose value it tries; "default" of the first row, "all" of combinations.
struct RowPlan {
  Row row{};
  TrainConfig config{};
};

/// Which rows there are beside that of the config itself.
struct RowsOf {
  std::vector<std::string_view> knobs{};  ///< keys that are tried; empty: all
  bool combined = false;                  ///< every combination instead of one change at a time
  int replicas = 2;                       ///< of shards, where the mesh names none
  int slice = 0;  ///< ranks to reshard to after forward; 0, or if it divides no shards: the least that do
};
/// The rows of `base`, resolved, of which mesh and link may be empty; the first is `base` itself. A strategy without
/// replicas is tried on one axis over replicate and dp, whose link is the slower of both; one with replicas on
/// base.plan.mesh, or where that names no replicate on parts of dp. Throws Error as MeshAxes::of(), and where fewer
/// than two ranks have data of their own.
std::vector<RowPlan> plan_rows(const TrainConfig& base, int ranks, const RowsOf& of = {});
/// The settings that rows differ in, as one name: "shard_grad_op, recompute full". What is as in `base` and no strategy
/// is left out, and recomputation where there is none.
std::string full_name(const TrainConfig& config, const TrainConfig& base);

/// Flags of what a row sets otherwise than `base`, beside mesh, strategy and recomputation: " --units fine", or "".
std::string more_flags(const TrainConfig& config, const TrainConfig& base);

/// `links` as the key of a TrainConfig, for all rows.
void set_link(std::vector<RowPlan>& rows, const TrainConfig& base, int ranks, const std::string& link);

}  // namespace sherd::plan
