#include "nn/checkpoint/format/block_reader.h"

#include <algorithm>

#include "runtime/tensor/error.h"

namespace sherd::ckpt {

void BlockReader::open(BlockFile& file) {
  if (file.file) return;
  if (open_.size() == kMostOpen) {  // a process may have a thousand, and a save more files
    for (BlockFile* other : open_) other->file.reset();
    open_.clear();
  }
  InputFile opened(file.path);
  if (file.sums && opened.bytes() != file.sums->bytes)
    fail("\"{}\" has {} bytes, the manifest says {}; the file is truncated or was replaced", file.path, opened.bytes(),
         file.sums->bytes);
  if (file.bytes >= 0 && opened.bytes() != file.bytes)
    fail("\"{}\" has {} bytes, before it had {}; the file was replaced", file.path, opened.bytes(), file.bytes);
  file.bytes = opened.bytes();
  open_.push_back(&file);
  file.file.emplace(std::move(opened));
}

std::optional<BadBlock> BlockReader::read_block(BlockFile& file, std::int64_t block, std::span<std::byte> out) {
  file.file->read(block * kBlockBytes, out);
  bytes_read_ += static_cast<std::int64_t>(out.size());
  if (!file.sums) return std::nullopt;
  const std::uint64_t expected = file.sums->sums[static_cast<std::size_t>(block)], found = checksum(out);
  return expected == found ? std::nullopt : std::optional(BadBlock{block, expected, found});
}

const BlockReader::Kept* BlockReader::find(const BlockFile& file, std::int64_t block) {
  const auto same =
      std::ranges::find_if(kept_, [&](const Kept& kept) { return kept.file == &file && kept.block == block; });
  if (same == kept_.end()) return nullptr;
  kept_.splice(kept_.begin(), kept_, same);
  return &kept_.front();
}

std::optional<BadBlock> BlockReader::read(BlockFile& file, std::int64_t at, std::span<std::byte> out) {
  if (out.empty()) return std::nullopt;
  open(file);
  const std::int64_t end = at + static_cast<std::int64_t>(out.size());
  check(at >= 0 && end <= file.file->bytes(), "\"{}\": bytes {} to {} are asked for, it has {}", file.path, at, end,
        file.file->bytes());
  for (std::int64_t block = at / kBlockBytes; block * kBlockBytes < end; ++block) {
    const std::int64_t begin = block * kBlockBytes, size = std::min(kBlockBytes, file.file->bytes() - begin);
    const std::int64_t from = std::max(at, begin), count = std::min(end, begin + size) - from;
    const auto part = out.subspan(static_cast<std::size_t>(from - at), static_cast<std::size_t>(count));
    if (count == size) {
      if (const auto bad = read_block(file, block, part)) return bad;
      continue;
    }
    const Kept* kept = find(file, block);
    if (!kept) {
      Kept fresh{&file, block, std::vector<std::byte>(static_cast<std::size_t>(size))};
      if (const auto bad = read_block(file, block, fresh.bytes)) return bad;
      kept_.push_front(std::move(fresh));
      if (kept_.size() > kMostKept) kept_.pop_back();
      kept = &kept_.front();
    }
    std::copy_n(kept->bytes.begin() + (from - begin), count, part.begin());
  }
  return std::nullopt;
}

}  // namespace sherd::ckpt
