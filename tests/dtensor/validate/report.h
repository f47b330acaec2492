#pragma once
// What the validator reports of one row: where its results are wrong, what it refuses, what moves although it need
// not, and a table of what every combination costs.
#include <string>
#include <vector>

#include "tests/dtensor/validate/run.h"

namespace sherd::testing {

/// A combination that local calls can do and the row's rule cannot.
struct MissingRule {
  std::string variant, in, out;  ///< out: placements of the outputs that local calls give
  std::string reason;            ///< why it is left so; empty: no reason is given
};

struct RowReport {
  std::string op;
  std::string skipped;  ///< why the row never meets distributed tensors; else empty
  struct OnMesh {
    MeshShape mesh;
    std::vector<Result> results;
  };
  std::vector<OnMesh> meshes;
  std::vector<MissingRule> missing;
};

/// Runs a row on meshes of 2, 3 and 2x2 ranks and looks for what is missing.
RowReport validate_row(const Op& op, const Effort& effort);

/// What must not occur: wrong results, and refusals and missing combinations without a reason. One line each.
std::vector<std::string> failures(const RowReport& report);
/// "matmul  412 calls: 130 free, 280 move, 2 refused, 0 wrong; 3 missing".
std::string summary(const RowReport& report);
/// Every combination of one even call along one axis of two ranks: placements, costs; then what is missing, and why.
std::string table(const RowReport& report);

}  // namespace sherd::testing
