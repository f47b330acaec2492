// Calls between two ranks. The sender shows one piece at a time in its mail window and waits until it was taken, so
// the window is free again when the call ends, and the next receiver may be any rank.
#include "runtime/comm/board/board.h"

namespace sherd::comm {

Fingerprint Board::open_pair_call(CommOp op, int peer) const {
  const auto& counts = op == CommOp::send ? sends_ : receives_;
  const auto number = static_cast<std::int64_t>(counts[static_cast<std::size_t>(peer)].calls) + 1;
  return Fingerprint::of_pair(op, number, lane(), root_rank(peer), members_);
}

void Board::enter_pair_call(const Fingerprint& call, CommOp op, int peer, Clock::time_point arrived) {
  check_usable(call);
  first_arrival_ = last_arrival_ = own_arrival_ = arrived;
  own().pair_call.store(call.text());
  own().activity.store(Activity::in_pair_call, std::memory_order_relaxed);
  tell_root();
  const bool sends = op == CommOp::send;
  const std::uint64_t number = ++(sends ? sends_ : receives_)[static_cast<std::size_t>(peer)].calls;
  Mail& mail = sends ? this->mail(rank(), peer) : this->mail(peer, rank());
  (sends ? mail.sender_arrived : mail.receiver_arrived)[number % 2].store(nanoseconds(arrived),
                                                                          std::memory_order_relaxed);
  if (sends) mail.hash.store(call.hash(), std::memory_order_relaxed);
  is_first_piece_ = true;
}

void Board::count_mail(std::atomic<std::uint64_t>& counter, std::uint64_t value, int peer) {
  counter.store(value, std::memory_order_seq_cst);
  const auto me = static_cast<std::uint32_t>(rank()) + 1;
  if (cell(peer).waiting_for.load(std::memory_order_seq_cst) == me) ring(peer, lane());
}

void Board::post_piece(int to) {
  Mail& mail = this->mail(rank(), to);
  MailCount& count = sends_[static_cast<std::size_t>(to)];
  count_mail(mail.sent, ++count.pieces, to);
  await({&RankCell::meetings, count.pieces, &mail.taken, to});
  if (std::exchange(is_first_piece_, false)) note_arrival(mail.receiver_arrived[count.calls % 2]);
}

void Board::await_piece(int from) {
  const Mail& mail = this->mail(from, rank());
  const MailCount& count = receives_[static_cast<std::size_t>(from)];
  await({&RankCell::meetings, count.pieces + 1, &mail.sent, from});
  if (!std::exchange(is_first_piece_, false)) return;
  note_arrival(mail.sender_arrived[count.calls % 2]);
  met_at_ = Clock::now();
  if (mail.hash.load(std::memory_order_relaxed) == call_.hash()) return;
  fail_call(fmt::format("rank {} calls {}, rank {} calls {}; a send and its recv must agree in types and counts",
                        root_rank(from), call_of(from, lane()), root_rank(), call()));
}

void Board::take_piece(int from) {
  count_mail(mail(from, rank()).taken, ++receives_[static_cast<std::size_t>(from)].pieces, from);
}

}  // namespace sherd::comm
