#include "runtime/comm/board/rounds.h"

#include <vector>

#include "runtime/tensor/indices.h"

namespace sherd::comm {

std::int64_t sum(std::span<const std::int64_t> counts) {
  std::int64_t total = 0;
  for (const std::int64_t count : counts) total += count;
  return total;
}

void reduce_piece(Board& board, const Exchange& exchange, int share, const Piece& piece,
                  std::span<const std::byte*> inputs, std::byte* out, const Reduction& reduction, bool streams) {
  for (const std::size_t rank : indices(inputs)) inputs[rank] = exchange.at(static_cast<int>(rank), share, piece);
  reduce(inputs, out, piece.count, reduction, streams);
  board.count_copied(piece.count * byte_size(reduction.out));
}

void copy_share(Board& board, const Exchange& exchange, int from, int share, std::span<const CollectivePart> parts,
                bool streams) {
  for (const Piece& piece : exchange.pieces(share))
    board.count_copied(copy(target(parts[piece.strip], piece), piece.dtype, exchange.at(from, share, piece),
                            exchange.type_at(piece), piece.count, streams));
}

void copy_sources(Board& board, std::span<const CollectivePart> parts, const Shares& shares) {
  const auto share = static_cast<std::size_t>(board.rank());
  for (const std::size_t i : indices(parts)) {
    const CollectivePart& part = parts[i];
    if (part.is_in_place(board.rank())) continue;
    const std::int64_t count = part.counts[share] / part.blocks;  // of each block
    const std::int64_t block = shares.start(i, shares.num_shares()) / part.blocks;
    const DType out = part.out_type();
    auto* to = static_cast<std::byte*>(part.out.address) + shares.start(i, share) / part.blocks * byte_size(out);
    const auto* from = static_cast<const std::byte*>(part.in.address);
    for (const std::int64_t b : up_to(part.blocks))
      board.count_copied(copy(to + b * block * byte_size(out), out, from + b * count * byte_size(part.dtype),
                              part.dtype, count, false));
  }
}

void copy_sources(Board& board, std::span<const CollectivePart> parts) {
  for (const CollectivePart& part : parts)
    if (part.in.address != nullptr)
      board.count_copied(copy(part.out.address, part.dtype, part.in.address, part.dtype, part.counts[0], false));
}

void read_gather(Board& board, const Exchange& exchange, std::span<const CollectivePart> parts, const Shares& shares) {
  const bool streams = shares.num_bytes() >= kStreamBytes;
  for (const int peer : up_to(board.size()))
    if (peer != board.rank() || exchange.is_in_place()) copy_share(board, exchange, peer, peer, parts, streams);
}

void show_scatter(const Board& board, Exchange& exchange) {
  for (const int peer : up_to(board.size()))
    if (peer != board.rank()) exchange.show(peer);
}

void read_scatter(Board& board, const Exchange& exchange, const Collective& call, const Shares& shares) {
  std::vector<const std::byte*> inputs(shares.num_shares());
  for (const Piece& piece : exchange.pieces(board.rank())) {
    const CollectivePart& part = call.parts[piece.strip];
    const Reduction reduction = reduction_of(call.reduction, board.size(), part);
    const std::int64_t at = piece.packed - shares.start(piece.strip, static_cast<std::size_t>(board.rank()));
    reduce_piece(board, exchange, board.rank(), piece, inputs,
                 static_cast<std::byte*>(part.out.address) + at * byte_size(reduction.out), reduction,
                 shares.num_bytes() >= kStreamBytes);
  }
}

}  // namespace sherd::comm
