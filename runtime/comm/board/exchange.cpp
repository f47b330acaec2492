// Why one meeting per staged round is enough: rounds alternate between two windows. A rank refills the window of
// round r in round r + 2, hence after the meeting of round r + 1, to which every peer comes only when it has finished
// reading round r. Reading in place has no second copy, so it ends with one more meeting.
//
// Processes find each other's tensors by a table of heap offsets, which each rank writes to its window before the first
// meeting. If a tensor of any rank is not in its heap, all ranks see that in the tables and stage the call.
#include "runtime/comm/board/exchange.h"

#include <algorithm>
#include <cstring>
#include <thread>

#include "runtime/tensor/indices.h"

namespace sherd::comm {

namespace {

/// An entry of the table that says: a strip of this rank is not in its heap, so all strips must be staged.
constexpr std::int64_t kElsewhere = std::numeric_limits<std::int64_t>::min();

std::int64_t* heap_table(const BoardMemory& memory, int rank, std::uint64_t round) {
  return reinterpret_cast<std::int64_t*>(memory.window(rank, round));
}

}  // namespace

// Reading and poison follow Dekker: either the reader sees the poison and stays away, or the rank that unwinds sees the
// reader and waits until it is done.
void begin_reading(const Board& board) {
  board.memory().own().is_reading.store(1, std::memory_order_seq_cst);
  if (!board.memory().is_poisoned()) return;
  end_reading(board);
  board.raise_poison();
}

void end_reading(const Board& board) { board.memory().own().is_reading.store(0, std::memory_order_seq_cst); }

void await_unread(const Board& board) {
  for (const int peer : up_to(board.size()))
    while (peer != board.rank() && board.memory().cell(peer).is_reading.load(std::memory_order_seq_cst) != 0)
      std::this_thread::yield();
}

Exchange::Exchange(Board& board, const Shares& shares, std::size_t slots, int own)
    : board_(board),
      memory_(board.memory()),
      shares_(shares),
      is_in_place_(board.size() == 1 ||
                   (shares.num_bytes() > kSmallBytes && (memory_.options.is_one_process || agree_on_heaps(own)))),
      slots_(slots),
      slot_bytes_(is_in_place_ ? Rounds::kUnlimited : memory_.options.window_bytes / slots / 64 * 64),
      rounds_(shares, slot_bytes_) {
  if (is_in_place_) memory_.own().strips.store(shares_.strips().data(), std::memory_order_release);
}

Exchange::~Exchange() {
  if (is_reading_) end_reading(board_);
}

bool Exchange::agree_on_heaps(int own) {
  const std::size_t num_strips = shares_.strips().size();
  if (memory_.options.heap_bytes == 0 || num_strips * sizeof(std::int64_t) > memory_.options.window_bytes) return false;
  const auto heap = reinterpret_cast<std::intptr_t>(memory_.heap(memory_.rank()));
  heap_round_ = board_.next_round();
  std::int64_t* table = heap_table(memory_, memory_.rank(), heap_round_);
  for (const std::size_t i : up_to(num_strips)) {
    const Strip& strip = shares_.strips()[i];
    const auto share = static_cast<std::size_t>(std::max(own, 0));
    const std::int64_t first = shares_.start(i, share),
                       last = shares_.start(i, own < 0 ? shares_.num_shares() : share + 1);
    const std::int64_t offset = strip.readable - heap, size = byte_size(strip.readable_dtype);
    const bool is_inside =
        offset + first * size >= 0 && std::cmp_less_equal(offset + last * size, memory_.options.heap_bytes);
    table[i] = first == last ? 0 : is_inside ? offset : kElsewhere;
  }
  board_.meet();
  has_met_ = true;
  for (const int rank : up_to(memory_.size())) {
    const std::span<const std::int64_t> offsets(heap_table(memory_, rank, heap_round_), num_strips);
    if (std::ranges::find(offsets, kElsewhere) != offsets.end()) return false;
  }
  return true;
}

bool Exchange::next() {
  if (!rounds_.next()) return false;
  if (!is_in_place_) round_ = board_.next_round();
  return true;
}

void Exchange::show(int share) {
  if (is_in_place_) return;
  std::byte* slot =
      memory_.window(memory_.rank(), round_) + (slots_ == 1 ? 0 : static_cast<std::size_t>(share)) * slot_bytes_;
  for (const Piece& piece : pieces(share)) {
    std::memcpy(slot + piece.offset, shares_.strips()[piece.strip].data + piece.byte_first(), piece.byte_count());
    board_.count_copied(static_cast<std::int64_t>(piece.byte_count()));
  }
}

void Exchange::meet() {
  if (std::exchange(is_reading_, false)) end_reading(board_);
  if (!is_in_place_) return board_.meet();
  if (!std::exchange(has_met_, false)) board_.meet();
  // A process keeps its heap mapped, so only threads must be kept from freeing what is read.
  if (!memory_.options.is_one_process) return;
  begin_reading(board_);
  is_reading_ = true;
}

const std::byte* Exchange::at(int rank, int share, const Piece& piece) const {
  if (!is_in_place_ && rank == memory_.rank()) return shares_.strips()[piece.strip].data + piece.byte_first();
  if (!is_in_place_)
    return memory_.window(rank, round_) + (slots_ == 1 ? 0 : static_cast<std::size_t>(share)) * slot_bytes_ +
           piece.offset;
  const Strip& own = shares_.strips()[piece.strip];
  std::intptr_t readable = own.readable;
  if (rank != memory_.rank() && memory_.options.is_one_process) {
    const void* const strips = memory_.cell(rank).strips.load(std::memory_order_acquire);
    readable = static_cast<const Strip*>(strips)[piece.strip].readable;
  } else if (rank != memory_.rank()) {
    readable =
        reinterpret_cast<std::intptr_t>(memory_.heap(rank)) + heap_table(memory_, rank, heap_round_)[piece.strip];
  }
  const std::int64_t first = own.is_packed ? piece.packed : piece.first;
  return reinterpret_cast<const std::byte*>(readable + first * byte_size(own.readable_dtype));
}

void Exchange::finish() {
  if (!is_in_place_) return;
  if (std::exchange(is_reading_, false)) end_reading(board_);
  board_.meet();
}

}  // namespace sherd::comm
