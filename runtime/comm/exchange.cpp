// Why one meeting per staged round is enough: rounds alternate between two windows. A rank refills the window of
// round r in round r + 2, hence after the meeting of round r + 1, to which every peer comes only when it has finished
// reading round r. Reading in place has no second copy, so it ends with one more meeting.
#include "runtime/comm/exchange.h"

#include <algorithm>
#include <cstring>

namespace sherd::comm {

Exchange::Exchange(Board& board, const Lanes& lanes, std::size_t slots)
    : board_(board),
      lanes_(lanes),
      is_in_place_(board.size() == 1 || (board.options().is_one_process && lanes.num_bytes() > kSmallBytes)),
      slots_(slots),
      slot_bytes_(is_in_place_ ? Rounds::kUnlimited : board.options().window_bytes / slots / 64 * 64),
      rounds_(lanes, slot_bytes_) {
  if (is_in_place_) board_.show_strips(lanes_.strips().data());
}

Exchange::~Exchange() {
  if (is_reading_) board_.end_reading();
}

bool Exchange::next() {
  if (!rounds_.next()) return false;
  if (!is_in_place_) round_ = board_.next_round();
  return true;
}

void Exchange::show(int lane) {
  if (is_in_place_) return;
  std::byte* slot =
      board_.window(board_.rank(), round_) + (slots_ == 1 ? 0 : static_cast<std::size_t>(lane)) * slot_bytes_;
  for (const Piece& piece : pieces(lane))
    std::memcpy(slot + piece.offset, lanes_.strips()[piece.strip].data + piece.byte_first(), piece.byte_count());
}

void Exchange::meet() {
  if (std::exchange(is_reading_, false)) board_.end_reading();
  board_.meet();
  if (!is_in_place_) return;
  board_.begin_reading();
  is_reading_ = true;
}

const std::byte* Exchange::at(int rank, int lane, const Piece& piece) const {
  if (rank == board_.rank()) return lanes_.strips()[piece.strip].data + piece.byte_first();
  if (is_in_place_) return static_cast<const Strip*>(board_.strips(rank))[piece.strip].data + piece.byte_first();
  return board_.window(rank, round_) + (slots_ == 1 ? 0 : static_cast<std::size_t>(lane)) * slot_bytes_ + piece.offset;
}

void Exchange::finish() {
  if (!is_in_place_) return;
  if (std::exchange(is_reading_, false)) board_.end_reading();
  board_.meet();
}

}  // namespace sherd::comm
