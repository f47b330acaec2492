#pragma once
// Queues whose work copies bytes of one rank: who waits for them waits for no other rank.
#include <algorithm>
#include <iterator>
#include <string_view>

namespace sherd {

inline constexpr std::string_view kDiskQueue = "disk", kOffloadQueue = "offload", kActivationsQueue = "activations";
inline constexpr std::string_view kCopyQueues[] = {kDiskQueue, kOffloadQueue, kActivationsQueue};

constexpr bool is_copy_queue(std::string_view name) {
  return std::find(std::begin(kCopyQueues), std::end(kCopyQueues), name) != std::end(kCopyQueues);
}

}  // namespace sherd
