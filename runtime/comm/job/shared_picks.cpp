#include "runtime/comm/job/shared_picks.h"

#include <memory>
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

}  // namespace

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
