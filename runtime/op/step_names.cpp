#include "runtime/op/step_names.h"

#include <algorithm>
#include <atomic>
#include <unordered_map>

#include "runtime/exec/context.h"

namespace sherd {

namespace {

/// Things by a key, in one look-up, of which nothing is kept alive. Keys of what is gone are dropped when as many were
/// added as there are, so that a program that makes and drops models does not fill it.
template <class Key, class T>
class Living {
 public:
  std::shared_ptr<const T> find(const Key& key) const {
    const auto found = by_key_.find(key);
    return found == by_key_.end() ? nullptr : found->second.lock();
  }
  void add(const Key& key, const std::shared_ptr<const T>& living) {
    if (by_key_.size() >= 2 * num_kept_ + kFewest) {
      std::erase_if(by_key_, [](const auto& entry) { return entry.second.expired(); });
      num_kept_ = by_key_.size();
    }
    by_key_[key] = living;
  }

 private:
  static constexpr std::size_t kFewest = 64;
  std::unordered_map<Key, std::weak_ptr<const T>> by_key_;
  std::size_t num_kept_ = 0;
};

/// `name`, or with "~2" after it, "~3", ..., if living ones are called so.
template <class T>
std::string free_name(const Living<std::string, T>& living, const std::string& name) {
  std::string result = name;
  for (int i = 2; living.find(result); ++i) result = fmt::format("{}~{}", name, i);
  return result;
}

// State of the rank context.
struct KnownNames {
  KnownNames() { RankContext::current().storage_name = &name_of; }  // messages of lower layers say the names
  ~KnownNames() { RankContext::current().storage_name = nullptr; }
  KnownNames(const KnownNames&) = delete;
  KnownNames& operator=(const KnownNames&) = delete;
  Living<std::string, NamedStorage> storages;
  Living<std::uint64_t, NamedStorage> storages_by_id;
  Living<std::string, StepSetting> settings;
};

KnownNames& known() { return RankContext::current().state<KnownNames>(); }

std::atomic<LayoutFinder> layout_finder{nullptr};

}  // namespace

std::shared_ptr<const NamedStorage> name_storage(std::string name, Ref<Storage> storage) {
  KnownNames& names = known();
  const std::uint64_t id = storage->id();
  const auto named = std::make_shared<const NamedStorage>(free_name(names.storages, name), std::move(storage));
  names.storages.add(named->name, named);
  names.storages_by_id.add(id, named);
  return named;
}

std::string name_of(const Storage& storage) {
  const auto named = known().storages_by_id.find(storage.id());
  return named ? named->name : std::string();
}

Ref<Storage> find_storage(std::string_view name) {
  const auto named = known().storages.find(std::string(name));
  return named ? named->storage : Ref<Storage>();
}

void name_setting(const std::shared_ptr<StepSetting>& setting, std::string name) {
  Living<std::string, StepSetting>& settings = known().settings;
  setting->name = free_name(settings, name);
  settings.add(setting->name, setting);
}

std::shared_ptr<const StepSetting> find_setting(std::string_view name) {
  return known().settings.find(std::string(name));
}

void install_layout_finder(LayoutFinder finder) { layout_finder.store(finder, std::memory_order_release); }

std::vector<LayoutRef> find_layouts(std::string_view name) {
  const LayoutFinder finder = layout_finder.load(std::memory_order_acquire);
  return finder ? finder(name) : std::vector<LayoutRef>();
}

}  // namespace sherd
