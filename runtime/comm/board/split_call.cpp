#include "runtime/comm/board/split_call.h"

#include "runtime/comm/board/board_group.h"
#include "runtime/comm/board/rounds.h"
#include "runtime/tensor/indices.h"

namespace sherd::comm {

bool SplitCall::fits(const Collective& call, const BoardLane& lane) {
  const bool gathers = call.op == CommOp::all_gather;
  if (lane.size() == 1 || lane.group_.link() || !(gathers || call.op == CommOp::reduce_scatter)) return false;
  const std::size_t ranks = static_cast<std::size_t>(lane.size());
  const std::size_t slot = lane.board_.memory().options.window_bytes / (gathers ? 1 : ranks) / 64 * 64;
  std::size_t total = 0;
  for (const std::size_t rank : up_to(ranks)) {
    std::size_t bytes = 0;
    for (const CollectivePart& part : call.parts) {
      const DType dtype = gathers ? part.out_type() : part.dtype;
      const auto run = static_cast<std::size_t>(part.counts[rank] / part.blocks * byte_size(dtype));
      const auto blocks = static_cast<std::size_t>(part.blocks);
      total += blocks * run;
      bytes += blocks * ((run + Rounds::kPieceAlignment - 1) / Rounds::kPieceAlignment * Rounds::kPieceAlignment);
    }
    if (bytes > slot) return false;
  }
  return total <= static_cast<std::size_t>(kSmallBytes);
}

/// Whatever leaves a half early fails the group, as in BoardLane::run().
template <class Body>
void SplitCall::guarded(Body&& body) {
  Board& board = lane_.board_;
  try {
    body(board);
  } catch (const std::exception& error) {
    board.memory().poison(
        fmt::format("rank {} failed in {}: {}", board.memory().root_rank(), opened_->call.text(), error.what()));
    board.leave();
    throw;
  }
}

void SplitCall::begin() {
  opened_ = lane_.open(call_);
  guarded([&](Board& board) {
    board.take_copied();  // of a call that failed
    board.enter(opened_->call, BoardClock::now());
    const bool gathers = call_.op == CommOp::all_gather;
    exchange_.emplace(board, opened_->shares, gathers ? 1 : opened_->shares.num_shares(), gathers ? lane_.rank() : -1);
    if (gathers) copy_sources(board, call_.parts, opened_->shares);
    exchange_->next();
    if (gathers) exchange_->show(lane_.rank());
    else show_scatter(board, *exchange_);
    board.come();
    number_ = board.suspend();
  });
}

bool SplitCall::is_ready() const { return lane_.board_.have_all_come(); }

void SplitCall::finish() {
  if (!has_begun()) begin();
  const auto start = BoardClock::now();
  Board& board = lane_.board_;
  if (!board.resume(number_))
    throw CommError(fmt::format("{}: the group was reset before this rank had its result", opened_->call.text()));
  guarded([&](Board&) {
    board.meet_others();
    if (call_.op == CommOp::all_gather) read_gather(board, *exchange_, call_.parts, opened_->shares);
    else read_scatter(board, *exchange_, call_, opened_->shares);
    board.leave();
  });
  lane_.count(call_.op, opened_->num_bytes, start);
}

}  // namespace sherd::comm
