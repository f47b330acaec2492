#pragma once
// Calls between two ranks: send and recv.
#include "runtime/comm/board/board.h"
#include "runtime/comm/board/byte_stream.h"

namespace sherd::comm {

/// One call between this rank and a peer, a send or a recv. It goes piece by piece through the sender's third window;
/// no other rank is waited for.
class Mail {
 public:
  Mail(Board& board, CommOp op, int peer) : board_(board), op_(op), peer_(peer) {}

  /// Names the call that enter() opens.
  Fingerprint open_call() const;
  /// As Board::enter().
  void enter(const Fingerprint& call, BoardClock::time_point arrived);
  /// Sends the bytes of the stream, or receives them into it, and counts those copied. Fails the group if the peer's
  /// call does not fit.
  void transfer(const ByteStream& stream);

 private:
  MailCell& cell() const {
    return op_ == CommOp::send ? board_.memory().mail(board_.rank(), peer_)
                               : board_.memory().mail(peer_, board_.rank());
  }
  void send_piece();
  void await_piece();

  Board& board_;
  const CommOp op_;
  const int peer_;
  bool is_first_piece_ = true;  // the peer's arrival is not known yet
};

}  // namespace sherd::comm
