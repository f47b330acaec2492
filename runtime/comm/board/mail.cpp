// The sender shows one piece at a time in its mail window and waits until it was taken, so the window is free again
// when the call ends, and the next receiver may be any rank.
#include "runtime/comm/board/mail.h"

#include <utility>

namespace sherd::comm {

namespace {

/// Shows the peer one piece more.
void count_piece(const BoardMemory& memory, std::atomic<std::uint64_t>& pieces, int peer) {
  pieces.store(pieces.load(std::memory_order_relaxed) + 1, std::memory_order_seq_cst);
  memory.ring(peer);
}

}  // namespace

Fingerprint Mail::open_call() const {
  const BoardMemory& memory = board_.memory();
  const std::int64_t number =
      (op_ == CommOp::send ? cell().sends : cell().receives).load(std::memory_order_relaxed) + 1;
  return Fingerprint::of_pair(op_, number, memory.lane(), memory.root_rank(peer_), memory.members());
}

void Mail::enter(const Fingerprint& call, BoardClock::time_point arrived) {
  board_.begin(call, arrived);
  RankCell& own = board_.memory().own();
  own.pair_call.store(call.text());
  own.activity.store(RankCell::Activity::in_pair_call, std::memory_order_relaxed);
  board_.tell_root();
  const bool sends = op_ == CommOp::send;
  MailCell& mail = cell();
  const std::uint32_t number = ++(sends ? mail.sends : mail.receives);
  (sends ? mail.sender_arrived : mail.receiver_arrived)[number % 2].store(to_nanoseconds(arrived),
                                                                          std::memory_order_relaxed);
  if (sends) mail.hash.store(call.hash(), std::memory_order_relaxed);
}

void Mail::transfer(const ByteStream& stream) {
  const BoardMemory& memory = board_.memory();
  const std::size_t window = memory.options.window_bytes;
  std::size_t at = 0;
  do {  // a piece at least, so that the ranks meet even when there is nothing to move
    if (op_ == CommOp::send) {
      board_.count_copied(stream.read(memory.mail_window(memory.rank()), at, window));
      send_piece();
    } else {
      await_piece();
      board_.count_copied(stream.write(memory.mail_window(peer_), at, window));
      count_piece(memory, cell().taken, peer_);
    }
  } while ((at += window) < stream.size());
}

/// Tells the peer that the next piece is in the own mail window, and waits until it was taken.
void Mail::send_piece() {
  MailCell& mail = cell();
  count_piece(board_.memory(), mail.sent, peer_);
  board_.await({&RankCell::meetings, mail.sent.load(std::memory_order_relaxed), &mail.taken, peer_});
  if (std::exchange(is_first_piece_, false)) board_.arrivals_.note(mail.receiver_arrived[mail.sends % 2]);
}

/// Waits for the next piece of the peer; the first of a call also compares the calls.
void Mail::await_piece() {
  const MailCell& mail = cell();
  board_.await({&RankCell::meetings, mail.taken.load(std::memory_order_relaxed) + 1, &mail.sent, peer_});
  if (!std::exchange(is_first_piece_, false)) return;
  board_.arrivals_.note(mail.sender_arrived[mail.receives % 2]);
  board_.arrivals_.met_at = BoardClock::now();
  if (mail.hash.load(std::memory_order_relaxed) == board_.call_.hash()) return;
  const BoardMemory& memory = board_.memory();
  board_.fail_call(fmt::format("rank {} calls {}, rank {} calls {}; a send and its recv must agree in types and counts",
                               memory.root_rank(peer_), call_in(memory.cell(peer_)), memory.root_rank(),
                               board_.call()));
}

}  // namespace sherd::comm
