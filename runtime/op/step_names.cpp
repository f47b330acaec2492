#include "runtime/op/step_names.h"

#include <algorithm>

#include "runtime/exec/context.h"

namespace sherd {

namespace {

// State of the rank context. Nothing here keeps anything alive.
struct KnownNames {
  KnownNames() { RankContext::current().storage_name = &name_of; }  // messages of lower layers say the names
  ~KnownNames() { RankContext::current().storage_name = nullptr; }
  KnownNames(const KnownNames&) = delete;
  KnownNames& operator=(const KnownNames&) = delete;
  std::vector<std::weak_ptr<const NamedStorage>> storages;
  std::vector<std::weak_ptr<const StepSetting>> settings;
  std::vector<const Distributed*> layouts;
};

KnownNames& known() { return RankContext::current().state<KnownNames>(); }

// The living one that `is_it` holds for; null if there is none.
template <class T, class IsIt>
std::shared_ptr<const T> find(const std::vector<std::weak_ptr<const T>>& list, const IsIt& is_it) {
  for (const std::weak_ptr<const T>& entry : list)
    if (std::shared_ptr<const T> living = entry.lock(); living && is_it(*living)) return living;
  return nullptr;
}

template <class T>
std::string free_name(std::vector<std::weak_ptr<const T>>& list, const std::string& name) {
  std::erase_if(list, [](const std::weak_ptr<const T>& entry) { return entry.expired(); });
  std::string result = name;
  for (int i = 2; find(list, [&](const T& other) { return other.name == result; }); ++i)
    result = fmt::format("{}~{}", name, i);
  return result;
}

// The layout whose mesh is gone says so by an Error.
bool has_mesh(const Distributed& layout) {
  try {
    layout.replicated();
    return true;
  } catch (const Error&) { return false; }
}

}  // namespace

std::shared_ptr<const NamedStorage> name_storage(std::string name, Ref<Storage> storage) {
  auto& list = known().storages;
  auto named = std::make_shared<const NamedStorage>(free_name(list, name), std::move(storage));
  list.push_back(named);
  return named;
}

std::string name_of(const Storage& storage) {
  const auto named = find(known().storages, [&](const NamedStorage& n) { return n.storage.get() == &storage; });
  return named ? named->name : std::string();
}

Ref<Storage> find_storage(std::string_view name) {
  const auto named = find(known().storages, [&](const NamedStorage& n) { return n.name == name; });
  return named ? named->storage : Ref<Storage>();
}

void name_setting(const std::shared_ptr<StepSetting>& setting, std::string name) {
  auto& list = known().settings;
  setting->name = free_name(list, name);
  list.push_back(setting);
}

std::shared_ptr<const StepSetting> find_setting(std::string_view name) {
  return find(known().settings, [&](const StepSetting& s) { return s.name == name; });
}

void name_layout(const Distributed& layout) { known().layouts.push_back(&layout); }

std::vector<const Distributed*> find_layouts(std::string_view name) {
  std::vector<const Distributed*> found = known().layouts;
  std::erase_if(found, [&](const Distributed* l) { return l->name() != name || !has_mesh(*l); });
  return found;
}

}  // namespace sherd
