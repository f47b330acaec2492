#pragma once
// Small exchanges of text between the ranks of a group, facts that must be the same on all of them, and errors that
// every rank sees. They are no communication of a step: CommCounts do not count them.
//
//   facts   ("unit 0", "blocks.0")  ("unit "blocks.0": the strategy", "full_shard")  ...
//   hash    8 bytes of each rank
//   where hashes differ: the facts themselves, and the first difference is what every rank raises
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/comm/group/process_group.h"

namespace sherd {

/// Every rank's text, by rank. Collective.
std::vector<std::string> gather_text(ProcessGroup& group, std::string_view text);

/// Runs `work` on every rank and waits for all. If it threw an Error on any rank, every rank throws Error with the
/// message of the lowest one ("rank 2: ..." elsewhere), so nobody goes on alone into a collective. Collective; `work`
/// itself must not communicate.
void together(ProcessGroup& group, const std::function<void()>& work);

/// What a rank says of itself: values by names, in one order on all ranks. Neither has a zero byte.
using Facts = std::vector<std::pair<std::string, std::string>>;

/// Error of ranks that differ, "what: first difference; remedy".
struct Disagreement {
  std::string what, remedy;
  /// Each rank tells some facts, and those of one name are compared among the ranks that tell them.
  bool is_among_holders = false;
};

/// Compares facts. False, on every rank, if some rank has none yet (unset); else true. One small all-gather unless
/// ranks differ. Collective; nothing on one rank and on ghosts. Throws Error, the same on every rank, with the first
/// fact that differs and who says what.
bool agree(ProcessGroup& group, const std::optional<Facts>& own, const Disagreement& error);

// ---- parts, for comparisons that go another way ----

/// "full_shard on ranks 0, 2; no_shard on rank 1", in the order of ranks; empty if all values are equal.
std::string by_value(std::span<const int> ranks, std::span<const std::string> values);
/// The first fact that differs: "the strategy is full_shard on ranks 0, 2; none on rank 1"; empty if none does. Of
/// facts of one name the first is compared with the first of others. `ranks` are their numbers for the text, one for
/// each of `said`; `is_among_holders` as in Disagreement.
std::string first_difference(std::span<const int> ranks, std::span<const Facts> said, bool is_among_holders = false);
/// As one text, and back.
std::string facts_to_text(const Facts& facts);
Facts facts_from_text(std::string_view text);
/// FNV-1a of the text.
std::uint64_t hash_facts(const Facts& facts);

namespace comm {
/// Whether this thread is in an exchange of texts.
bool is_agreeing();
}  // namespace comm

}  // namespace sherd
