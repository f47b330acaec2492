#pragma once
// What a step uses besides slots and groups, by name. A program is data and holds none of these; a rank knows which
// storage, setting or layout of its own a name means. Whoever makes such a thing names it: a unit its gathered
// parameters ("blocks.0 full") and its settings; dtensor finds its layouts.
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/memory/storage.h"
#include "runtime/op/core/capture_sink.h"
#include "runtime/op/core/distributed.h"

namespace sherd {

struct NamedStorage {
  std::string name;
  Ref<Storage> storage;
};

/// Makes a storage known on this rank for as long as the result lives, by `name`, with "~2" after it if another living
/// one has that name. Ranks that name the same storages in the same order use the same names.
std::shared_ptr<const NamedStorage> name_storage(std::string name, Ref<Storage> storage);
/// What a storage is known by on this rank; empty if it is not.
std::string name_of(const StorageMemory& storage);
/// This rank's storage of that name; empty if there is none.
Ref<Storage> find_storage(std::string_view name);

/// Makes a setting known on this rank while it lives, and sets its name, as above.
void name_setting(const std::shared_ptr<StepSetting>& setting, std::string name);
/// This rank's setting of that name; null if there is none.
std::shared_ptr<const StepSetting> find_setting(std::string_view name);

/// This rank's layouts of that name(), of meshes that are there: whoever makes layouts says how they are found.
using LayoutFinder = std::vector<LayoutRef> (*)(std::string_view name);
void install_layout_finder(LayoutFinder finder);
std::vector<LayoutRef> find_layouts(std::string_view name);

}  // namespace sherd
