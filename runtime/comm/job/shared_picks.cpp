#include "runtime/comm/job/shared_picks.h"

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "runtime/tensor/fnv1a.h"

namespace sherd {

namespace {

constexpr std::chrono::seconds kPatience{30};

/// What others wait for is set however making it ends.
std::string make_for_all(Store& store, const std::string& name, const Picks::Make& make) {
  try {
    std::string pick = make();
    store.set(name, pick);
    return pick;
  } catch (...) {
    store.set(name, "");
    throw;
  }
}

/// Picks of all threads; one that is being made is not set.
struct ThreadPicks {
  std::mutex mutex;
  std::condition_variable made;
  std::map<std::string, std::optional<std::string>> picks;

  void set(const std::string& key, std::string pick) {
    {
      const std::lock_guard lock(mutex);
      picks[key] = std::move(pick);
    }
    made.notify_all();
  }
  /// What another thread has made or makes; unset: this one is to.
  std::optional<std::string> wait(const std::string& key) {
    std::unique_lock lock(mutex);
    const auto [at, is_first] = picks.try_emplace(key);
    if (is_first || !made.wait_for(lock, kPatience, [&] { return at->second.has_value(); })) return std::nullopt;
    return at->second;
  }
};

}  // namespace

Picks::Share share_among_threads() {
  return [shared = std::make_shared<ThreadPicks>()](const std::string& key, const Picks::Make& make) {
    if (std::optional<std::string> known = shared->wait(key); known && !known->empty()) return *known;
    try {
      std::string pick = make();
      shared->set(key, pick);
      return pick;
    } catch (...) {
      shared->set(key, "");
      throw;
    }
  };
}

Picks::Share share_over(std::function<std::shared_ptr<Store>()> find_store) {
  return [find_store = std::move(find_store)](const std::string& key, const Picks::Make& make) {
    const std::shared_ptr<Store> store = find_store();
    if (!store) return make();
    const std::string name = fmt::format("pick/{:016x}", fnv1a(key));
    if (store->add(name + "/claim", 1) == 1) return make_for_all(*store, name, make);
    try {
      if (std::string pick = store->get(name, kPatience); !pick.empty()) return pick;
    } catch (const KeyNotSet&) {}
    return make();
  };
}

}  // namespace sherd
