#include "nn/checkpoint/format/block_sums.h"

#include <algorithm>

#include "runtime/tensor/error.h"

namespace sherd::ckpt {

namespace {
constexpr std::size_t kDigits = 16;
}  // namespace

std::string block_sums_text(std::span<const std::uint64_t> sums) {
  std::string text;
  text.reserve(sums.size() * kDigits);
  for (const std::uint64_t sum : sums) fmt::format_to(std::back_inserter(text), "{:016x}", sum);
  return text;
}

BlockSums block_sums_from_text(std::int64_t bytes, std::string_view text) {
  check(bytes >= 0, "a file has {} bytes", bytes);
  const auto blocks = static_cast<std::uint64_t>(num_blocks_of(bytes));
  check(text.size() % kDigits == 0 && text.size() / kDigits == blocks,
        "{} bytes are {} blocks, whose sums are 16 digits each; the text has {}", bytes, blocks, text.size());
  BlockSums sums{bytes, {}};
  sums.sums.reserve(blocks);
  for (std::size_t at = 0; at < text.size(); at += kDigits)
    sums.sums.push_back(checksum_from_text(text.substr(at, kDigits)));
  return sums;
}

void BlockHasher::add(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const std::int64_t room = kBlockBytes - done_.bytes % kBlockBytes;
    const auto count = std::min(bytes.size(), static_cast<std::size_t>(room));
    block_.add(bytes.first(count));
    bytes = bytes.subspan(count);
    done_.bytes += static_cast<std::int64_t>(count);
    if (static_cast<std::int64_t>(count) < room) continue;
    done_.sums.push_back(block_.value());
    block_ = Checksum();
  }
}

BlockSums BlockHasher::sums() const {
  BlockSums sums = done_;
  if (sums.bytes % kBlockBytes != 0) sums.sums.push_back(block_.value());
  return sums;
}

}  // namespace sherd::ckpt
