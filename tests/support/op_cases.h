#pragma once
// One list of small calls for every row of the op table, as data: which row, which inputs, which attributes. The sweep
// of tests/runtime and later the sweeps over backends, shardings and captured steps walk this list.
#include <string>
#include <vector>

#include "runtime/op/core/op.h"
#include "runtime/op/core/rows.h"
#include "tests/support/draw.h"

namespace sherd::testing {

struct OpCase {
  std::string op;    ///< name of the row
  std::string name;  ///< what is special: "odd", "broadcast", "empty"
  std::vector<Arg> args;
  Attrs attrs{};
  bool dense_only = false;  ///< the row's user function makes inputs dense, its kernel refuses strides
  bool large = false;       ///< enough work for several chunks of a parallel loop
  double slack = 1;         ///< factor on the dtype's tolerance where a sum is long or ill-conditioned; say why
  double grad_slack = 1;    ///< the same for gradients, on top
  bool floats_only_f64_f32 = false;  ///< the row has no 16-bit form
};

/// Inputs of a case; the seed is fixed by the case's place in its list of args.
std::vector<Tensor> inputs_of(const OpCase& test_case, DType dtype);

/// All cases, family by family. Every row has some but those that dtensor runs in its own way, without a kernel.
const std::vector<OpCase>& op_cases();
/// Whether the row moves tensors, or is the one that its sharding rule runs as a program of others.
inline bool is_run_by_dtensor(const Op& row) {
  return row.traits.placement || &row == &op::linear_cross_entropy_backward;
}

using OpCases = std::vector<OpCase>;
void add_pointwise_cases(OpCases& cases);
void add_reduce_cases(OpCases& cases);
void add_view_cases(OpCases& cases);
void add_index_cases(OpCases& cases);
void add_matmul_cases(OpCases& cases);
void add_fused_cases(OpCases& cases);  ///< norms, attention, losses
void add_random_cases(OpCases& cases);
void add_optimizer_cases(OpCases& cases);
void add_collective_cases(OpCases& cases);
void add_unit_cases(OpCases& cases);  ///< of units without elements: what they do with some is in unit_rows_test

}  // namespace sherd::testing
