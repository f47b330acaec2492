#pragma once
// How n elements are cut into parts of ranks: chunks of ceil(n / parts), the last ones shorter or empty.
#include <algorithm>
#include <cstdint>

namespace sherd {

inline std::int64_t chunk_begin(std::int64_t n, int parts, int r) { return std::min(n, r * ((n + parts - 1) / parts)); }
inline std::int64_t chunk_size(std::int64_t n, int parts, int r) {
  return chunk_begin(n, parts, r + 1) - chunk_begin(n, parts, r);
}

}  // namespace sherd
