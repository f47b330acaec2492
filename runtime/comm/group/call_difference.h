#pragma once
// The words for ranks that have come to one place with different calls.
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace sherd::comm {

/// Messages end so where ranks make the same call with other sizes.
inline constexpr std::string_view kUnlikeSizes =
    "; their parts of a tensor have other sizes: from_local() takes them to be alike unless it is given the `shape`, "
    "or a layout that lists them (Spec::with_rows())";

/// A rank and the call it is in, as Fingerprint has it.
struct RankCall {
  int rank = 0;
  std::uint64_t hash = 0;
  std::string text{};
};

/// "ranks 0, 2 call all_gather #1 [...], rank 1 calls ...", and what to do; empty if all hashes are equal.
std::string difference_of_calls(std::span<const RankCall> calls);

}  // namespace sherd::comm
