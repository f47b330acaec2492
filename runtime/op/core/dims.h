#pragma once
// The dims column of a row: "mk,kn->mn" names the factors of an op's iteration space by letters, one per dim, with
// "..." for any leading dims. A letter in brackets must not be sharded: "...[d]->...[d]" is an op on lines, of which a
// rank needs all elements. Sharding rules, FLOPs, bytes and documentation are derived from it.
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/op/core/op.h"

namespace sherd {

/// One operand: "...nk" is {ellipsis, "nk"}.
struct DimsTerm {
  bool ellipsis = false;
  std::string letters;
};

/// The parsed column.
struct DimsSpec {
  std::vector<DimsTerm> inputs, outputs;
  std::string whole;  ///< letters in brackets, which must not be sharded
};

/// Throws Error on anything but terms of distinct letters with at most one leading "...", "," between and one "->";
/// the "..." of an output must occur in an input, and a letter that stands in brackets does so in every operand.
DimsSpec parse_dims(std::string_view text);

/// What a factor is to the op, by where it occurs.
enum class FactorKind : std::uint8_t {
  batch,       ///< in every input and every output: each slice is an op of its own
  left,        ///< in the first input (not in all) and the outputs
  right,       ///< in other inputs only, and the outputs
  contracted,  ///< in no output: summed away
  created,     ///< in outputs only: its size comes from the attributes
};
std::string_view name(FactorKind kind);

struct Factor {
  char letter = 0;  ///< '.' for a dim of "..."
  FactorKind kind = FactorKind::batch;
  std::int64_t size = 1;     ///< -1 for a created factor
  std::uint32_t inputs = 0;  ///< bit i: input i has it (along "...": with more than one element)
  std::uint32_t outputs = 0;
};

/// A spec with sizes. Dims of "..." are factors of their own, first, aligned at the right and broadcast.
struct BoundDims {
  std::vector<Factor> factors;
  std::vector<Shape> outputs;
};

/// Gives the factors their sizes. `inputs` has one entry per term, null for an absent optional input. Throws Error
/// if a letter gets two sizes, a term does not fit its shape, or every input that names a letter is absent. Dims of
/// created factors are -1 in the outputs.
BoundDims bind_dims(const DimsSpec& spec, std::span<const Shape* const> inputs);
/// The same for the inputs of a call.
BoundDims bind_dims(const DimsSpec& spec, MetaList inputs);

struct OpCost {
  double flops = 0;
  std::int64_t bytes = 0;
};

/// Work of one call, from metadata only. Operations: by the column `flops` if the row has it. Otherwise contractions
/// (rows linear in each of two or more floating inputs whose dims say so) take two per point of the iteration space;
/// other rows take one per element of the largest operand, a lower bound. Bytes: every operand once, those written in
/// place twice. Views take nothing.
OpCost op_cost(const Op& op, MetaList in, AttrsView attrs, std::span<const TensorMeta> out);

}  // namespace sherd
