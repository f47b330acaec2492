#include "runtime/comm/board/lanes.h"

#include <algorithm>

namespace sherd::comm {

void Lanes::add(const void* data, DType dtype, std::span<const std::int64_t> counts) {
  strips_.push_back({static_cast<const std::byte*>(data), dtype, reinterpret_cast<std::intptr_t>(data), dtype});
  std::int64_t start = 0;
  starts_.push_back(start);
  for (const std::int64_t count : counts) starts_.push_back(start += count);
  num_bytes_ += start * byte_size(dtype);
}

void Lanes::add(const void* data, DType dtype, std::span<const std::int64_t> counts, int own, const void* source,
                DType source_dtype) {
  add(data, dtype, counts);
  Strip& strip = strips_.back();
  const std::int64_t before = start(strips_.size() - 1, static_cast<std::size_t>(own));
  strip.readable = reinterpret_cast<std::intptr_t>(source) - before * byte_size(source_dtype);
  strip.readable_dtype = source_dtype;
}

void Lanes::add_even(const void* data, DType dtype, std::int64_t count) {
  strips_.push_back({static_cast<const std::byte*>(data), dtype, reinterpret_cast<std::intptr_t>(data), dtype});
  const auto n = static_cast<std::int64_t>(num_lanes_);
  for (std::int64_t lane = 0; lane <= n; ++lane) starts_.push_back(lane * (count / n) + std::min(lane, count % n));
  num_bytes_ += count * byte_size(dtype);
}

Rounds::Rounds(const Lanes& lanes, std::size_t slot_bytes)
    : lanes_(lanes), slot_bytes_(slot_bytes), cursors_(lanes.num_lanes()), ends_(lanes.num_lanes()) {
  for (std::size_t lane = 0; lane < cursors_.size(); ++lane) skip_finished(lane);
}

bool Rounds::next() {
  const auto is_used_up = [this](const Cursor& cursor) { return cursor.strip == lanes_.strips().size(); };
  if (started_ && std::ranges::all_of(cursors_, is_used_up)) return false;
  started_ = true;
  pieces_.clear();
  for (std::size_t lane = 0; lane < cursors_.size(); ++lane) {
    take(lane);
    ends_[lane] = pieces_.size();
  }
  return true;
}

std::span<const Piece> Rounds::pieces(std::size_t lane) const {
  const std::size_t begin = lane == 0 ? 0 : ends_[lane - 1];
  return std::span(pieces_).subspan(begin, ends_[lane] - begin);
}

void Rounds::take(std::size_t lane) {
  Cursor& cursor = cursors_[lane];
  std::size_t used = 0;
  while (cursor.strip < lanes_.strips().size() && used < slot_bytes_) {
    const DType dtype = lanes_.strips()[cursor.strip].dtype;
    const std::int64_t begin = lanes_.start(cursor.strip, lane) + cursor.done;
    const std::int64_t left = lanes_.start(cursor.strip, lane + 1) - begin;
    const std::size_t room = (slot_bytes_ - used) / static_cast<std::size_t>(byte_size(dtype));
    const auto count = static_cast<std::int64_t>(std::min(static_cast<std::size_t>(left), room));
    const Piece piece{cursor.strip, dtype, begin, count, used};
    pieces_.push_back(piece);
    used += (piece.byte_count() + kPieceAlignment - 1) / kPieceAlignment * kPieceAlignment;
    cursor.done += count;
    skip_finished(lane);
  }
}

void Rounds::skip_finished(std::size_t lane) {
  Cursor& cursor = cursors_[lane];
  const std::size_t num_strips = lanes_.strips().size();
  while (cursor.strip < num_strips &&
         cursor.done == lanes_.start(cursor.strip, lane + 1) - lanes_.start(cursor.strip, lane)) {
    cursor = {cursor.strip + 1, 0};
  }
}

}  // namespace sherd::comm
