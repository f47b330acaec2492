#pragma once
// Memory that processes share without a name: a sealed memfd, passed from one to the other as a descriptor.
#include <cstddef>
#include <memory>

#include "runtime/os/descriptor.h"

namespace sherd::comm {

std::size_t to_huge_pages(std::size_t bytes);

/// Address space for the heap of each of `ranks` ranks, every one of which maps all heaps: as much as the host has
/// memory, so that a heap is never what is short, unless that is more than a share of the address space that is left.
std::size_t heap_bytes_for(int ranks, std::size_t host_memory, std::size_t address_space);
/// The same of this host and process: its limit on address space (ulimit -v) less what it uses, 128 TiB without one.
std::size_t default_heap_bytes(int ranks);

/// Zeroed memory of a fixed size; the first `allocated_bytes` of it have their pages at once. Throws CommError.
Descriptor new_segment(std::size_t bytes, std::size_t allocated_bytes);

/// Maps a segment at a multiple of a huge page, until the last owner is gone. Throws CommError unless it has this size,
/// a multiple of a huge page.
std::shared_ptr<std::byte> map_segment(const Descriptor& memory, std::size_t bytes);

}  // namespace sherd::comm
