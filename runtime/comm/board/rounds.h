#pragma once
// The rounds of a collective: what ranks do before and after they meet.
#include <cstdint>
#include <span>

#include "runtime/comm/board/elements.h"
#include "runtime/comm/board/exchange.h"

namespace sherd::comm {

/// Where a piece of a part's result belongs.
inline std::byte* target(const CollectivePart& part, const Piece& piece) {
  return static_cast<std::byte*>(part.out.address) + piece.byte_first();
}

std::int64_t sum(std::span<const std::int64_t> counts);

/// Combines one piece of all ranks, as a tree, into `out`. `inputs` is room for an address per rank.
void reduce_piece(Board& board, const Exchange& exchange, int share, const Piece& piece,
                  std::span<const std::byte*> inputs, std::byte* out, const Reduction& reduction, bool streams);

/// Copies one share of a rank to the own tensors.
void copy_share(Board& board, const Exchange& exchange, int from, int share, std::span<const CollectivePart> parts,
                bool streams);

/// all_gather. Puts the own parts in place before they are staged, once per call.
void copy_sources(Board& board, std::span<const CollectivePart> parts, const Shares& shares);
/// The same of all_reduce and of broadcast's root.
void copy_sources(Board& board, std::span<const CollectivePart> parts);
/// Reads what all ranks have shown.
void read_gather(Board& board, const Exchange& exchange, std::span<const CollectivePart> parts, const Shares& shares);

/// reduce_scatter.
void show_scatter(const Board& board, Exchange& exchange);
void read_scatter(Board& board, const Exchange& exchange, const Collective& call, const Shares& shares);

/// all_to_all, in rounds of its own. Fails the group if a rank expects a count other than its peer sends.
void swap_parts(Board& board, std::span<const CollectivePart> parts);

}  // namespace sherd::comm
