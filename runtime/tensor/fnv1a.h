// FNV-1a, 64 bits: https://datatracker.ietf.org/doc/html/draft-eastlake-fnv. What it hashes must not change where saved
// runs, caches on disk or placements are made of it; it is no defence against texts that are made to collide.
#pragma once

#include <cstdint>
#include <string_view>

namespace sherd {

inline constexpr std::uint64_t kFnvStart = 0xcbf29ce484222325u;

// The hash of `text` after what `hash` is of.
constexpr std::uint64_t fnv1a(std::string_view text, std::uint64_t hash = kFnvStart) {
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return hash;
}

}  // namespace sherd
