#pragma once
// The rounds of a collective: what ranks do before and after they meet.
#include <cstdint>
#include <span>

#include "runtime/comm/board/elements.h"
#include "runtime/comm/board/exchange.h"

namespace sherd::comm {

inline std::byte* target(void* data, const Piece& piece) { return static_cast<std::byte*>(data) + piece.byte_first(); }

std::int64_t sum(std::span<const std::int64_t> counts);
Reduction reduction_of(const ReduceOptions& options, int size, DType dtype);
Reduction reduction_of(const ReduceOptions& options, int size, const ScatterPart& part);

/// Combines one piece of all ranks, in rank order, into `out`. `inputs` is room for an address per rank.
void reduce_piece(Board& board, const Exchange& exchange, int share, const Piece& piece,
                  std::span<const std::byte*> inputs, std::byte* out, const Reduction& reduction, bool streams);

/// Copies one share of a rank to the own tensors.
template <class Part>
void copy_share(Board& board, const Exchange& exchange, int from, int share, std::span<const Part> parts,
                bool streams) {
  for (const Piece& piece : exchange.pieces(share))
    board.count_copied(copy(target(parts[piece.strip].data, piece), piece.dtype, exchange.at(from, share, piece),
                            exchange.type_at(piece), piece.count, streams));
}

/// all_gather. Puts the own parts in place before they are staged, once per call.
void copy_sources(Board& board, std::span<const GatherPart> parts, const Shares& shares);
/// The same of all_reduce and of broadcast's root.
void copy_sources(Board& board, std::span<const FlatPart> parts);
/// Reads what all ranks have shown.
void read_gather(Board& board, const Exchange& exchange, std::span<const GatherPart> parts, const Shares& shares);

/// reduce_scatter.
void show_scatter(const Board& board, Exchange& exchange);
void read_scatter(Board& board, const Exchange& exchange, std::span<const ScatterPart> parts, const Shares& shares,
                  const ReduceOptions& options);

/// all_to_all, in rounds of its own. Fails the group if a rank expects a count other than its peer sends.
void swap_parts(Board& board, std::span<const SwapPart> parts);

}  // namespace sherd::comm
