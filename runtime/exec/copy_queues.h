#pragma once
// Queues whose work copies bytes of one rank: who waits for them waits for no other rank.
#include <algorithm>
#include <iterator>
#include <string_view>

namespace sherd {

inline constexpr std::string_view kCopyQueues[] = {"disk", "offload", "activations"};

constexpr bool is_copy_queue(std::string_view name) {
  return std::find(std::begin(kCopyQueues), std::end(kCopyQueues), name) != std::end(kCopyQueues);
}

}  // namespace sherd
