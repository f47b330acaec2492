// Calls between two ranks. The sender shows one piece at a time in its mail window and waits until it was taken, so the
// window is free again when the call ends, whoever the next receiver is.
#include "runtime/comm/board.h"

namespace sherd::comm {

Fingerprint Board::open_pair_call(CommOp op, int peer) const {
  const auto& counts = op == CommOp::send ? sends_ : receives_;
  const auto number = static_cast<std::int64_t>(counts[static_cast<std::size_t>(peer)].calls) + 1;
  return Fingerprint::of_pair(op, number, channel(), root_rank(peer), members_);
}

void Board::enter_pair_call(const Fingerprint& call, CommOp op, int peer) {
  check_usable(call);
  own().pair_call.store(call.text());
  own().activity.store(Activity::in_pair_call, std::memory_order_relaxed);
  tell_root();
  ++(op == CommOp::send ? sends_ : receives_)[static_cast<std::size_t>(peer)].calls;
  if (op == CommOp::send) mail(rank(), peer).hash.store(call.hash(), std::memory_order_relaxed);
  is_first_piece_ = true;
}

void Board::count_mail(std::atomic<std::uint64_t>& counter, std::uint64_t value, int peer) {
  counter.store(value, std::memory_order_seq_cst);
  const auto me = static_cast<std::uint32_t>(rank()) + 1;
  if (cell(peer).waiting_for.load(std::memory_order_seq_cst) == me) ring(peer, channel());
}

void Board::post_piece(int to) {
  Mail& mail = this->mail(rank(), to);
  const std::uint64_t piece = ++sends_[static_cast<std::size_t>(to)].pieces;
  count_mail(mail.sent, piece, to);
  await({&RankCell::meetings, piece, &mail.taken, to});
}

void Board::await_piece(int from) {
  const Mail& mail = this->mail(from, rank());
  await({&RankCell::meetings, receives_[static_cast<std::size_t>(from)].pieces + 1, &mail.sent, from});
  if (!std::exchange(is_first_piece_, false)) return;
  met_at_ = Clock::now();
  if (mail.hash.load(std::memory_order_relaxed) == call_.hash()) return;
  fail_call(fmt::format("rank {} calls {}, rank {} calls {}; a send and its recv must agree in types and counts",
                        root_rank(from), call_of(from, channel()), root_rank(), call()));
}

void Board::take_piece(int from) {
  count_mail(mail(from, rank()).taken, ++receives_[static_cast<std::size_t>(from)].pieces, from);
}

}  // namespace sherd::comm
