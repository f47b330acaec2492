// First the ranks of an all_to_all exchange how much they send, which is all that a rank cannot know of its peers; then
// bytes go in rounds through the windows, which are divided into one slot per receiver. All ranks know all counts,
// hence the number of rounds.
#include <algorithm>
#include <cstring>
#include <vector>

#include "runtime/comm/board/byte_stream.h"
#include "runtime/comm/board/exchange.h"
#include "runtime/comm/board/rounds.h"
#include "runtime/tensor/indices.h"

namespace sherd::comm {

namespace {

/// Counts of all ranks: [sender][part][receiver].
class SendCounts {
 public:
  SendCounts(Board& board, std::span<const CollectivePart> parts)
      : size_(static_cast<std::size_t>(board.size())), num_parts_(parts.size()), counts_(size_ * num_parts_ * size_) {
    const std::vector<std::int64_t> row(size_, static_cast<std::int64_t>(num_parts_ * size_));
    auto* own = counts_.data() + static_cast<std::size_t>(board.rank()) * num_parts_ * size_;
    for (const CollectivePart& part : parts) own = std::ranges::copy(part.counts, own).out;
    Shares shares(board.size());
    shares.add(counts_.data(), DType::i64, row);
    Exchange exchange(board, shares, 1, board.rank());
    while (exchange.next()) {
      exchange.show(board.rank());
      exchange.meet();
      for (const int peer : up_to(board.size()))
        for (const Piece& piece : exchange.pieces(peer))
          if (peer != board.rank())
            std::memcpy(counts_.data() + piece.first, exchange.at(peer, peer, piece), piece.byte_count());
    }
    exchange.finish();
  }
  std::int64_t at(std::size_t from, std::size_t part, std::size_t to) const {
    return counts_[(from * num_parts_ + part) * size_ + to];
  }

 private:
  std::size_t size_, num_parts_;
  std::vector<std::int64_t> counts_;
};

/// The stretches of a list of buffers that belong to one rank.
ByteStream stream_of(std::span<const CollectivePart> parts, std::size_t rank, Buffer CollectivePart::* buffer,
                     std::vector<std::int64_t> CollectivePart::* counts) {
  ByteStream stream;
  for (const CollectivePart& part : parts) {
    const std::vector<std::int64_t>& list = part.*counts;
    const std::int64_t size = byte_size(part.dtype), bytes = list[rank] * size;
    const std::int64_t before = sum(std::span(list).first(rank)) * size;
    if (bytes > 0)
      stream.add(static_cast<const std::byte*>((part.*buffer).address) + before, static_cast<std::size_t>(bytes));
  }
  return stream;
}

}  // namespace

void swap_parts(Board& board, std::span<const CollectivePart> parts) {
  const auto size = static_cast<std::size_t>(board.size()), me = static_cast<std::size_t>(board.rank());
  const SendCounts counts(board, parts);
  board.take_copied();  // what was written so far are counts, not elements
  for (const std::size_t from : up_to(size))
    for (const std::size_t p : indices(parts))
      if (counts.at(from, p, me) != parts[p].out_counts[from])
        board.fail_call(fmt::format("{}: rank {} sends {} elements of tensor {} to rank {}, which expects {}{}",
                                    board.call(), board.memory().root_rank(static_cast<int>(from)),
                                    counts.at(from, p, me), p, board.memory().root_rank(), parts[p].out_counts[from],
                                    kUnlikeSizes));

  std::vector<ByteStream> out, in;  // to and from each rank
  for (const std::size_t rank : up_to(size)) {
    out.push_back(stream_of(parts, rank, &CollectivePart::in, &CollectivePart::counts));
    in.push_back(stream_of(parts, rank, &CollectivePart::out, &CollectivePart::out_counts));
  }
  std::size_t most = 0;
  for (const std::size_t from : up_to(size))
    for (const std::size_t to : up_to(size)) {
      std::size_t bytes = 0;
      for (const std::size_t p : indices(parts))
        bytes += static_cast<std::size_t>(counts.at(from, p, to) * byte_size(parts[p].dtype));
      if (from != to) most = std::max(most, bytes);
    }

  std::vector<std::byte> own(out[me].size());
  board.count_copied(out[me].read(own.data(), 0, own.size()) + in[me].write(own.data(), 0, own.size()));
  const std::size_t slot = board.memory().options.window_bytes / size / 64 * 64;
  for (std::size_t at = 0; at < most; at += slot) {
    const std::uint64_t round = board.next_round();
    for (const std::size_t peer : up_to(size))
      if (peer != me)
        board.count_copied(out[peer].read(board.memory().window(board.rank(), round) + peer * slot, at, slot));
    board.meet();
    for (const std::size_t peer : up_to(size))
      if (peer != me)
        board.count_copied(in[peer].write(board.memory().window(static_cast<int>(peer), round) + me * slot, at, slot));
  }
}

}  // namespace sherd::comm
