#include "tests/support/emulated_nccl/host_order.h"

#include <unistd.h>

#include <atomic>
#include <iterator>

#include <fmt/format.h>

namespace sherd::cuda::nccl::fake {

void HostOrder::compare() {
  for (auto item = expected_.begin(); item != expected_.end();) {
    const std::optional<std::uint64_t> there = item->place_there();
    if (!there) {
      ++item;
      continue;
    }
    auto& places = known_[{item->thread, item->peer}];
    const auto after = places.upper_bound(item->place);
    const Known* crossed = nullptr;
    // Several items of one group have one place.
    if (after != places.end() && after->second.there < *there) crossed = &after->second;
    if (after != places.begin() && std::prev(after)->first < item->place && std::prev(after)->second.there > *there)
      crossed = &std::prev(after)->second;
    if (crossed)
      item->differs(fmt::format("two orders over two communicators: {} comes {} {} here, and {} there", item->what,
                                crossed->there < *there ? "before" : "after", crossed->what,
                                crossed->there < *there ? "after" : "before"));
    places[item->place] = {*there, item->what};
    if (places.size() > kRemembered) places.erase(places.begin());
    item = expected_.erase(item);
  }
}

std::uint64_t this_thread() {
  static std::atomic<std::uint64_t> count{0};
  thread_local const std::uint64_t number = ++count;
  return static_cast<std::uint64_t>(::getpid()) << 32 | number;
}

}  // namespace sherd::cuda::nccl::fake
