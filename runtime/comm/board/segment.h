#pragma once
// Memory that processes share without a name: a sealed memfd, passed from one to the other as a descriptor.
#include <cstddef>
#include <memory>

#include "runtime/os/descriptor.h"

namespace sherd::comm {

std::size_t to_huge_pages(std::size_t bytes);

/// Zeroed memory of a fixed size; the first `allocated_bytes` of it have their pages at once. Throws CommError.
Descriptor new_segment(std::size_t bytes, std::size_t allocated_bytes);

/// Maps a segment at a multiple of a huge page, until the last owner is gone. Throws CommError unless it has this size,
/// a multiple of a huge page.
std::shared_ptr<std::byte> map_segment(const Descriptor& memory, std::size_t bytes);

}  // namespace sherd::comm
