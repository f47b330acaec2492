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

/// The rows of `base`, resolved, of which mesh and link may be empty; the first is `base` itself. A strategy without
/// replicas is tried on one axis over replicate and dp, whose link is the slower of both; one with replicas on
/// base.plan.mesh, or where that names no replicate on two halves of dp.
/// `all`: every combination. Throws Error as MeshAxes::of(), and where fewer than two ranks have data of their own.
std::vector<RowPlan> plan_rows(const TrainConfig& base, int ranks, bool all);

/// `links` as the key of a TrainConfig, for all rows.
void set_link(std::vector<RowPlan>& rows, const TrainConfig& base, int ranks, const std::string& link);

}  // namespace sherd::plan
