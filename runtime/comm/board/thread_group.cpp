#include "runtime/comm/board/thread_group.h"

#include <map>
#include <mutex>

#include "runtime/comm/board/board_group.h"
#include "runtime/comm/board/exchange.h"
#include "runtime/comm/board/thread_group_options.h"

namespace sherd {

namespace {

/// Where the threads of one root offer boards to each other. The rank that offers one keeps it alive.
class HeapSource final : public comm::BoardSource {
 public:
  std::shared_ptr<std::byte> offer(const std::string& tag, std::span<const int>, int size,
                                   std::size_t window_bytes) override {
    std::shared_ptr<std::byte> memory = comm::BoardMemory::on_heap(size, window_bytes);
    std::lock_guard lock(mutex_);
    std::erase_if(offers_, [](const auto& offer) { return offer.second.expired(); });
    offers_[tag] = memory;
    return memory;
  }

  std::shared_ptr<std::byte> take(const std::string& tag, int, std::size_t) override {
    std::lock_guard lock(mutex_);
    const auto offer = offers_.find(tag);
    std::shared_ptr<std::byte> memory = offer == offers_.end() ? nullptr : offer->second.lock();
    check(memory != nullptr, "subgroup: the first rank's memory has not come");
    return memory;
  }

 private:
  std::mutex mutex_;
  std::map<std::string, std::weak_ptr<std::byte>> offers_;
};

}  // namespace

std::vector<std::shared_ptr<ProcessGroup>> make_thread_groups(int size, const ThreadGroupOptions& given) {
  constexpr int kMaxRanks = 252;  // as many as processes may be
  check(size >= 1 && size <= kMaxRanks, "a thread group of {} ranks; give 1..{}", size, kMaxRanks);
  constexpr std::size_t kWindow = comm::kSmallBytes;
  const std::shared_ptr<std::byte> memory = comm::BoardMemory::on_heap(size, kWindow);
  const auto source = std::make_shared<HeapSource>();
  std::vector<std::shared_ptr<ProcessGroup>> groups;
  for (int rank = 0; rank < size; ++rank) {
    comm::BoardOptions options{.rank = rank,
                               .size = size,
                               .window_bytes = kWindow,
                               .is_one_process = true,
                               .has_died = {},
                               .source = source,
                               .notice = {.after = given.say_after, .say = given.say},
                               .look = given.look};
    groups.push_back(std::make_shared<comm::BoardGroup>("thread", memory, options));
  }
  return groups;
}

std::vector<std::shared_ptr<ProcessGroup>> make_thread_groups(int size) {
  return make_thread_groups(size, ThreadGroupOptions());
}

std::shared_ptr<ProcessGroup> make_single_group() {
  comm::BoardOptions options{.rank = 0, .size = 1, .window_bytes = 0, .is_one_process = true, .has_died = {}};
  return std::make_shared<comm::BoardGroup>("single", comm::BoardMemory::on_heap(1, 0), options);
}

}  // namespace sherd
