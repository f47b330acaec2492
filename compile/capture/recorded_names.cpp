#include "compile/capture/recorded_names.h"

#include <algorithm>
#include <set>

#include "runtime/tensor/indices.h"

namespace sherd {

ir::ModuleId RecordedNames::module(const std::string* path) {
  if (!path || path->empty()) return ir::kNoModule;
  if (const auto known = modules_.find(path); known != modules_.end()) return known->second;
  const std::string* const interned = context_.intern(*path);  // looks at all paths, hence once for each
  const auto [found, is_new] = modules_.try_emplace(interned, static_cast<ir::ModuleId>(program_.modules.size()));
  const ir::ModuleId id = found->second;
  if (is_new) {
    program_.modules.push_back(*interned);
    live_.modules.push_back(interned);
  }
  modules_[path] = id;
  return id;
}

ir::LayoutId RecordedNames::layout(const Distributed* layout) {
  if (!layout) return ir::kPlain;
  const auto known = std::ranges::find(live_.layouts, layout, &LayoutRef::get);
  if (known != live_.layouts.end()) return static_cast<ir::LayoutId>(known - live_.layouts.begin());
  const std::string own = layout->name();
  std::string name = own;
  for (int i = 2; std::ranges::find(program_.layouts, name) != program_.layouts.end(); ++i)
    name = fmt::format("{}~{}", own, i);
  program_.layouts.push_back(std::move(name));
  live_.layouts.push_back(layout);
  return static_cast<ir::LayoutId>(live_.layouts.size() - 1);
}

int RecordedNames::slot(const Slot& slot) {
  const auto [found, is_new] = slots_.try_emplace(slot.leaf(), static_cast<int>(program_.slots.size()));
  if (!is_new) return found->second;
  ir::GraphSlot entry{.name = slot.name(), .requires_grad = slot.requires_grad()};
  if (const SlotsBefore::Of* before = before_.find(slot.leaf())) {
    entry.requires_grad = before->requires_grad;
    entry.had_value = before->had_value;
    entry.had_grad = before->grad.storage != 0;
  }
  program_.slots.push_back(std::move(entry));
  live_.slots.emplace_back(slot.leaf());
  return found->second;
}

int RecordedNames::add_setting(const std::shared_ptr<const StepSetting>& setting) {
  program_.settings.push_back({setting->name, setting->text});
  live_.settings.push_back(setting);
  return static_cast<int>(live_.settings.size()) - 1;
}

void RecordedNames::setting_read(const std::shared_ptr<const StepSetting>& setting) {
  if (!settings_.contains(setting.get())) settings_[setting.get()] = add_setting(setting);
}

void RecordedNames::setting_changed(const std::shared_ptr<const StepSetting>& setting) {
  settings_.try_emplace(setting.get(), -1);
  if (std::ranges::find(own_settings_, setting) == own_settings_.end()) own_settings_.push_back(setting);
}

void RecordedNames::finish() {
  add_own_settings();
  forget_local_slots();
  name_slots();
}

// A replay changes no settings, so it is only as good as the step where they are as the step leaves them.
void RecordedNames::add_own_settings() {
  for (const auto& setting : own_settings_) {
    int& index = settings_.at(setting.get());
    if (index < 0) index = add_setting(setting);
    else if (ir::GraphSetting& read = program_.settings[static_cast<std::size_t>(index)]; read.text != setting->text)
      read.text += fmt::format(" before it and {} after it", setting->text);  // which no call finds
  }
}

// A slot that was made and destroyed within the step is as good as a local variable.
void RecordedNames::forget_local_slots() {
  for (const std::size_t i : indices(live_.slots)) {
    ir::GraphSlot& slot = program_.slots[i];
    slot.is_local = !live_.slot(static_cast<int>(i)) && !before_.find(static_cast<Leaf*>(live_.slots[i].get()));
    if (slot.is_local) live_.slots[i] = NodeRef();
  }
  std::erase_if(program_.updates, [&](const ir::SlotUpdate& u) { return program_.slot(u.slot).is_local; });
}

// Among slots with one name the one that was made first keeps it, so that bind() can tell them apart; slots of other
// threads follow, in the order in which the step used them.
void RecordedNames::name_slots() {
  std::set<std::string> taken;
  std::vector<bool> is_named(program_.slots.size());
  const auto name = [&](std::size_t index) {
    ir::GraphSlot& slot = program_.slots[index];
    if (is_named[index]) return;
    is_named[index] = true;
    const std::string own = slot.name;
    for (int i = 2; !taken.insert(slot.name).second; ++i) slot.name = fmt::format("{}~{}", own, i);
  };
  for (const Slot* slot : living_slots())
    if (const auto found = slots_.find(slot->leaf()); found != slots_.end())
      name(static_cast<std::size_t>(found->second));
  for (const std::size_t i : indices(program_.slots)) name(i);
}

}  // namespace sherd
