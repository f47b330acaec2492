#pragma once
// The table of collectives that every group is run on: settings, those of which fit together, and cases in which every
// two settings that fit meet.
#include <array>
#include <cstdint>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/comm/group/collective.h"

namespace sherd::testing {

/// How a full tensor is divided: alike, as torch.chunk does it, or all of it to the last rank.
enum class Split : std::uint8_t { even, chunks, last };

/// A collective that all ranks call. `send` is one of even ranks to the next ones.
struct CollectiveCase {
  int ranks = 2;
  comm::CommOp op = comm::CommOp::all_gather;
  DType dtype = DType::f32;
  std::int64_t size = 77;  ///< elements of the first full tensor, about
  Split split = Split::even;
  bool is_list = false;  ///< three tensors: one of another type, and an empty one
  bool in_place = false;
  std::int64_t blocks = 1;
  DType out_dtype = DType::f32, wire = DType::f32;
  bool accumulate = false;
  ReduceOptions reduction{};
  bool in_heap = false;      ///< inputs lie where peers can read them, if the group has such memory
  bool whole = false;        ///< elements whose sums and products are exact in any order
  std::string_view queue{};  ///< none: run() of a group of the host, on the rank's thread

  std::string text() const;
};

/// Cases for groups of these sizes. The same ones for the same worlds.
std::vector<CollectiveCase> pairwise_cases(std::span<const int> worlds);
/// Any case for groups of these sizes.
CollectiveCase draw_case(std::span<const int> worlds, std::mt19937& random);

}  // namespace sherd::testing
