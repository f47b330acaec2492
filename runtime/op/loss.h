#pragma once
// How linear_cross_entropy cuts its rows: forward and backward use the same chunks, so the logits that backward
// computes again have the same bits.
#include <algorithm>
#include <cstdint>

namespace sherd {

/// Rows of logits held at a time for `vocabulary` columns: 128 to 1024, at most 8 M elements where that is possible.
constexpr std::int64_t loss_chunk_rows(std::int64_t vocabulary) {
  return std::clamp<std::int64_t>((std::int64_t{1} << 23) / std::max<std::int64_t>(vocabulary, 1), 128, 1024);
}

}  // namespace sherd
