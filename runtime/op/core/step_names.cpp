#include "runtime/op/core/step_names.h"

#include <algorithm>
#include <atomic>

#include "runtime/exec/context.h"
#include "runtime/op/core/living.h"
#include "runtime/tensor/no_copy.h"

namespace sherd {

namespace {

// State of the rank context.
struct KnownNames : NoCopy {
  KnownNames() { RankContext::current().storage_name = &name_of; }  // messages of lower layers say the names
  ~KnownNames() { RankContext::current().storage_name = nullptr; }
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

std::string name_of(const StorageMemory& storage) {
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
