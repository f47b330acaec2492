#include "runtime/comm/board/shares.h"

#include <algorithm>

#include "runtime/tensor/indices.h"

namespace sherd::comm {

void Shares::add(const void* data, DType dtype, std::span<const std::int64_t> counts, std::int64_t blocks) {
  strips_.push_back(
      {static_cast<const std::byte*>(data), dtype, reinterpret_cast<std::intptr_t>(data), dtype, blocks, false});
  std::int64_t start = 0;
  starts_.push_back(start);
  for (const std::int64_t count : counts) starts_.push_back(start += count);
  num_bytes_ += start * byte_size(dtype);
}

void Shares::add(const void* data, DType dtype, std::span<const std::int64_t> counts, int own, const void* source,
                 DType source_dtype, std::int64_t blocks) {
  add(data, dtype, counts, blocks);
  Strip& strip = strips_.back();
  const std::int64_t before = start(strips_.size() - 1, static_cast<std::size_t>(own));
  strip.readable = reinterpret_cast<std::intptr_t>(source) - before * byte_size(source_dtype);
  strip.readable_dtype = source_dtype;
  strip.is_packed = true;
}

void Shares::add_even(const void* data, DType dtype, std::int64_t count) {
  strips_.push_back({static_cast<const std::byte*>(data), dtype, reinterpret_cast<std::intptr_t>(data), dtype});
  const auto n = static_cast<std::int64_t>(num_shares_);
  for (std::int64_t share = 0; share <= n; ++share) starts_.push_back(share * (count / n) + std::min(share, count % n));
  num_bytes_ += count * byte_size(dtype);
}

Rounds::Rounds(const Shares& shares, std::size_t slot_bytes)
    : shares_(shares), slot_bytes_(slot_bytes), cursors_(shares.num_shares()), ends_(shares.num_shares()) {
  for (const std::size_t share : indices(cursors_)) skip_finished(share);
}

bool Rounds::next() {
  const auto is_used_up = [this](const Cursor& cursor) { return cursor.strip == shares_.strips().size(); };
  if (started_ && std::ranges::all_of(cursors_, is_used_up)) return false;
  started_ = true;
  pieces_.clear();
  for (const std::size_t share : indices(cursors_)) {
    take(share);
    ends_[share] = pieces_.size();
  }
  return true;
}

std::span<const Piece> Rounds::pieces(std::size_t share) const {
  const std::size_t begin = share == 0 ? 0 : ends_[share - 1];
  return std::span(pieces_).subspan(begin, ends_[share] - begin);
}

// What is left of the share's run that the cursor is in: of its part of the strip, or of one block of it.
Piece Rounds::run_at(const Cursor& cursor, std::size_t share, std::size_t offset) const {
  const Strip& strip = shares_.strips()[cursor.strip];
  const std::int64_t start = shares_.start(cursor.strip, share), size = shares_.start(cursor.strip, share + 1) - start;
  Piece run{cursor.strip, strip.dtype, start + cursor.done, size - cursor.done, offset, start + cursor.done};
  if (strip.blocks == 1) return run;
  const std::int64_t row = size / strip.blocks,
                     block = shares_.start(cursor.strip, shares_.num_shares()) / strip.blocks;
  const std::int64_t within = cursor.done % row;
  run.first = cursor.done / row * block + start / strip.blocks + within;
  run.count = row - within;
  return run;
}

void Rounds::take(std::size_t share) {
  Cursor& cursor = cursors_[share];
  std::size_t used = 0;
  while (cursor.strip < shares_.strips().size() && used < slot_bytes_) {
    Piece piece = run_at(cursor, share, used);
    const std::size_t room = (slot_bytes_ - used) / static_cast<std::size_t>(byte_size(piece.dtype));
    piece.count = static_cast<std::int64_t>(std::min(static_cast<std::size_t>(piece.count), room));
    pieces_.push_back(piece);
    used += (piece.byte_count() + kPieceAlignment - 1) / kPieceAlignment * kPieceAlignment;
    cursor.done += piece.count;
    skip_finished(share);
  }
}

void Rounds::skip_finished(std::size_t share) {
  Cursor& cursor = cursors_[share];
  const std::size_t num_strips = shares_.strips().size();
  while (cursor.strip < num_strips &&
         cursor.done == shares_.start(cursor.strip, share + 1) - shares_.start(cursor.strip, share)) {
    cursor = {cursor.strip + 1, 0};
  }
}

}  // namespace sherd::comm
