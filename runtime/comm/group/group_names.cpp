#include "runtime/comm/group/group_names.h"

#include <algorithm>
#include <vector>

#include "runtime/exec/context.h"
#include "runtime/tensor/error.h"

namespace sherd {

namespace {

struct KnownGroup {
  std::string name;
  std::weak_ptr<ProcessGroup> group;
  ProcessGroup* address;  // of the group while it lives
};

// State of the rank context. A rank has few groups: they are looked for one after the other.
struct KnownGroups {
  std::vector<KnownGroup> list;
  const KnownGroup* find(std::string_view name) const {
    const auto found =
        std::ranges::find_if(list, [&](const KnownGroup& g) { return g.name == name && !g.group.expired(); });
    return found == list.end() ? nullptr : &*found;
  }
  const KnownGroup* find(const ProcessGroup& group) const {
    const auto found =
        std::ranges::find_if(list, [&](const KnownGroup& g) { return g.address == &group && !g.group.expired(); });
    return found == list.end() ? nullptr : &*found;
  }
};

KnownGroups& known_groups() { return RankContext::current().state<KnownGroups>(); }

}  // namespace

std::string name_group(const std::shared_ptr<ProcessGroup>& group) {
  KnownGroups& known = known_groups();
  std::erase_if(known.list, [](const KnownGroup& g) { return g.group.expired(); });
  if (const KnownGroup* same = known.find(*group)) return same->name;
  std::string name = group->name();
  for (int i = 2; known.find(name); ++i) name = fmt::format("{}~{}", group->name(), i);
  known.list.push_back({name, group, group.get()});
  return name;
}

std::string name_group(ProcessGroup& group) {
  if (const KnownGroup* const known = known_groups().find(group)) return known->name;
  const std::shared_ptr<ProcessGroup> held = group.weak_from_this().lock();
  check(held != nullptr, "a lane of the {} group \"{}\" has no name of its own; give the group", group.kind(),
        group.name());
  return name_group(held);
}

std::string name_of_group(const ProcessGroup& group) {
  const KnownGroup* const known = known_groups().find(group);
  check(known != nullptr, "the {} group \"{}\" is not known by name on this rank; name_group() makes it", group.kind(),
        group.name());
  return known->name;
}

ProcessGroup* find_group(std::string_view name) {
  const KnownGroup* const known = known_groups().find(name);
  return known ? known->address : nullptr;
}

ProcessGroup& group_named(std::string_view name) {
  if (ProcessGroup* group = find_group(name)) return *group;
  std::vector<std::string_view> names;
  for (const KnownGroup& g : known_groups().list)
    if (!g.group.expired()) names.push_back(g.name);
  fail(
      "there is no process group \"{}\" on this rank; there are: {}. A mesh names the groups of its axes while it "
      "lives",
      name, names.empty() ? "none" : fmt::format("{}", fmt::join(names, ", ")));
}

std::vector<std::pair<std::string, std::shared_ptr<ProcessGroup>>> named_groups() {
  std::vector<std::pair<std::string, std::shared_ptr<ProcessGroup>>> groups;
  for (const KnownGroup& known : known_groups().list)
    if (std::shared_ptr<ProcessGroup> group = known.group.lock()) groups.emplace_back(known.name, std::move(group));
  return groups;
}

}  // namespace sherd
