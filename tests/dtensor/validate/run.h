#pragma once
// One row of the op table on real ranks: values and gradients of distributed calls against those of the same call on
// one rank, and what they communicate.
#include <cstdint>
#include <string>
#include <vector>

#include "tests/dtensor/validate/combinations.h"
#include "tests/dtensor/validate/variants.h"

namespace sherd::testing {

struct MeshShape {
  std::vector<int> sizes;
  int ranks() const;
  std::string name() const;  ///< "2x2"
};

/// How much is tried.
struct Effort {
  std::size_t variants = 9;       ///< per row and mesh, drawn from those there are
  std::size_t combinations = 24;  ///< per variant and mesh
  DType dtype = DType::f64;       ///< of floating inputs
  std::uint64_t seed = 1;
};

enum class Cost : std::uint8_t { free, moves, refused };

/// One combination of one call.
struct Result {
  Variant variant;
  Combination combination;
  std::string out{};                  ///< placements of the outputs
  Cost cost = Cost::free;             ///< of the forward call
  std::int64_t calls = 0, bytes = 0;  ///< collectives of this rank, and their full buffers
  std::string refusal{};              ///< the error's message; of the backward pass if it says so
  std::string wrong{};                ///< what differs from one rank's; empty if nothing does
};

/// Ranks are threads. A failure that leaves the ranks at different calls ends the run: the last result contains it.
std::vector<Result> run_on_mesh(const Op& op, const MeshShape& mesh, const Effort& effort);

}  // namespace sherd::testing
