// A root mesh owns a group per axis, made when the mesh is made; slices and flattened axes are lists of root axes. They
// are interned, so that equal ones are one object and their layouts too.
#include "dtensor/mesh.h"

#include <algorithm>
#include <atomic>
#include <map>

#include "dtensor/layer.h"
#include "dtensor/modes.h"
#include "dtensor/propagate.h"
#include "dtensor/spec_table.h"
#include "runtime/comm/group/ghost_group.h"
#include "runtime/comm/group/group_names.h"
#include "runtime/comm/job/world.h"
#include "runtime/exec/context.h"
#include "runtime/tensor/error.h"
#include "runtime/tensor/indices.h"

namespace sherd {

struct DeviceMesh::Root : std::enable_shared_from_this<DeviceMesh::Root> {
  std::shared_ptr<ProcessGroup> group;
  std::vector<Axis> axes;
  std::vector<int> coordinates;
  std::map<std::vector<int>, std::shared_ptr<ProcessGroup>> groups;  // by axes: single ones, flattened ones, all
  std::map<std::string, std::vector<int>> flattened;                 // axes by flattened name
  std::shared_ptr<SpecTable::Former> former_layouts;                 // the rank's
  std::shared_ptr<RankRegister> home = RankContext::current().rank_register;
  // All meshes over these axes that were ever made. Ranks that are threads have roots of their own.
  std::vector<std::unique_ptr<const Impl>> meshes;

  // Work in flight points at groups: it must finish before a group is destroyed that only this mesh holds.
  ~Root() {
    meshes.clear();
    group.reset();
    const bool ends_one = std::ranges::any_of(groups, [](const auto& g) { return g.second.use_count() == 1; });
    home->note_change();
    if (RankContext* const context = RankContext::current_or_null(); context && ends_one) context->drain_queues();
  }
};

namespace {

using Axis = DeviceMesh::Axis;

int ranks_of(const std::shared_ptr<ProcessGroup>& group) {
  check(group != nullptr, "a mesh needs a process group; world_group() is that of all ranks");
  return group->size();
}

std::string describe_axes(std::span<const Axis> axes) {
  std::string text;
  for (const Axis& a : axes) text += fmt::format("{}{}={}", text.empty() ? "" : ",", a.name, a.size);
  return fmt::format("mesh({})", text);
}

void check_axes(std::span<const Axis> axes, int ranks) {
  check(!axes.empty(), "a mesh needs at least one axis");
  std::int64_t product = 1;
  for (const std::size_t i : indices(axes)) {
    check(!axes[i].name.empty(), "a mesh axis needs a name");
    check(axes[i].size >= 1, "mesh axis \"{}\" has size {}; the least is 1", axes[i].name, axes[i].size);
    for (const std::size_t j : up_to(i))
      check(axes[j].name != axes[i].name, "{}: two axes are named \"{}\"", describe_axes(axes), axes[i].name);
    product *= axes[i].size;
  }
  check(product == ranks, "{} has {} places, the group has {} ranks: the sizes of the axes must multiply to that",
        describe_axes(axes), product, ranks);
}

std::vector<int> coordinates_at(std::span<const Axis> axes, int rank) {
  std::vector<int> at(axes.size());
  for (std::size_t a = axes.size(); a-- > 0; rank /= axes[a].size) at[a] = rank % axes[a].size;
  return at;
}

// The ranks that differ from the one at `coordinates` along `axes` only, row-major in that order.
std::vector<int> ranks_along(std::span<const Axis> all, std::span<const int> coordinates, std::span<const int> axes) {
  std::vector<int> ranks;
  std::vector<int> place(coordinates.begin(), coordinates.end());
  const auto rank_at = [&] {
    int rank = 0;
    for (const std::size_t a : indices(all)) rank = rank * all[a].size + place[a];
    return rank;
  };
  int count = 1;
  for (int a : axes) count *= all[static_cast<std::size_t>(a)].size;
  for (const int i : up_to(count)) {
    int rest = i;
    for (std::size_t k = axes.size(); k-- > 0;) {
      const auto a = static_cast<std::size_t>(axes[k]);
      place[a] = rest % all[a].size;
      rest /= all[a].size;
    }
    ranks.push_back(rank_at());
  }
  return ranks;
}

std::vector<int> all_axes(std::size_t count) {
  std::vector<int> axes;
  for (const std::size_t a : up_to(count)) axes.push_back(static_cast<int>(a));
  return axes;
}

}  // namespace

// State of the rank context: equal meshes over one group share their axis groups.
struct DeviceMesh::KnownRoots {
  std::vector<std::weak_ptr<Root>> roots;
  std::shared_ptr<SpecTable::Former> former_layouts = std::make_shared<SpecTable::Former>();
};

DeviceMesh::DeviceMesh(std::shared_ptr<ProcessGroup> group, std::string axis)
    : DeviceMesh(group, std::vector<Axis>{{std::move(axis), ranks_of(group)}}) {}

DeviceMesh::DeviceMesh(std::shared_ptr<ProcessGroup> group, std::vector<Axis> axes) {
  KnownRoots& known_roots = RankContext::current().state<KnownRoots>();
  std::vector<std::weak_ptr<Root>>& roots = known_roots.roots;
  check_axes(axes, ranks_of(group));
  check_fits_rank(*group);
  install_distributed_layer();
  distributed_modes();  // which a program of a step names, and a rank that reads one looks for
  std::erase_if(roots, [](const auto& r) { return r.expired(); });
  std::shared_ptr<Root> root;
  for (const auto& r : roots)
    if (const auto known = r.lock(); known && known->group == group && known->axes == axes) root = known;
  if (!root) {
    root = std::make_shared<Root>();
    root->former_layouts = known_roots.former_layouts;
    root->group = group;
    root->axes = axes;
    root->coordinates = coordinates_at(axes, group->rank());
    root->groups[all_axes(axes.size())] = group;
    if (axes.size() > 1)
      for (int a = 0; a < static_cast<int>(axes.size()); ++a)
        root->groups[{a}] =
            group->subgroup(ranks_along(axes, root->coordinates, {&a, 1}), axes[static_cast<std::size_t>(a)].name);
    for (const auto& [list, axis_group] : root->groups) name_group(axis_group);
    roots.push_back(root);
  }
  impl_ = mesh_over(*root, axes, [&] {
    std::vector<std::vector<int>> lists;
    for (const int a : up_to(static_cast<int>(axes.size()))) lists.push_back({a});
    return lists;
  }());
}

std::shared_ptr<const DeviceMesh::Impl> DeviceMesh::mesh_over(Root& root, const std::vector<Axis>& axes,
                                                              const std::vector<std::vector<int>>& root_axes) {
  static std::atomic<std::uint64_t> next_id{1};
  const auto handle = [&](const Impl* impl) { return std::shared_ptr<const Impl>(root.shared_from_this(), impl); };
  for (const auto& m : root.meshes)
    if (m->axes == axes && m->root_axes == root_axes) return handle(m.get());
  auto impl = std::make_unique<Impl>();
  impl->id = next_id++;
  impl->layouts = std::make_shared<SpecTable>(root.former_layouts);
  impl->root = &root;
  impl->axes = axes;
  impl->root_axes = root_axes;
  for (const std::vector<int>& list : root_axes) {
    impl->groups.push_back(root.groups.at(list));
    int coordinate = 0;
    for (int a : list) {
      const auto i = static_cast<std::size_t>(a);
      coordinate = coordinate * root.axes[i].size + root.coordinates[i];
    }
    impl->coordinates.push_back(coordinate);
  }
  root.meshes.push_back(std::move(impl));
  return handle(root.meshes.back().get());
}

std::vector<LayoutRef> DeviceMesh::layouts_called(std::string_view name) {
  std::vector<LayoutRef> found;
  for (const auto& known : RankContext::current().state<KnownRoots>().roots)
    if (const auto root = known.lock())
      for (const auto& mesh : root->meshes)
        for (const LayoutRef& layout : mesh->layouts->called(name)) found.push_back(layout);
  return found;
}

DeviceMesh DeviceMesh::world() { return DeviceMesh(world_group(), "dp"); }
DeviceMesh DeviceMesh::from_launcher(std::vector<Axis> axes) { return DeviceMesh(world_group(), std::move(axes)); }

std::size_t DeviceMesh::index(int axis) const {
  if (axis < 0 || axis >= ndim()) [[unlikely]]
    fail("there is no axis {} in {}: its axes are numbered from 0 to {}", axis, describe(), ndim() - 1);
  return static_cast<std::size_t>(axis);
}

int DeviceMesh::only_axis(const char* what) const {
  if (ndim() != 1) [[unlikely]]
    fail("{} of {}: say of which axis, by index or name", what, describe());
  return 0;
}

bool DeviceMesh::has_axis(std::string_view name) const {
  return std::any_of(axes().begin(), axes().end(), [&](const Axis& a) { return a.name == name; });
}

int DeviceMesh::axis(std::string_view name) const {
  for (int a = 0; a < ndim(); ++a)
    if (axis_name(a) == name) return a;
  fail("{} has no axis \"{}\"", describe(), name);
}

int DeviceMesh::num_ranks() const {
  int product = 1;
  for (const Axis& a : axes()) product *= a.size;
  return product;
}

std::vector<int> DeviceMesh::coordinates_of(int rank) const {
  check(rank >= 0 && rank < num_ranks(), "rank {} of {}, which has {}", rank, describe(), num_ranks());
  return coordinates_at(axes(), rank);
}

ProcessGroup* DeviceMesh::joint_group(std::span<const int> axes) const {
  std::vector<int> list;
  for (int a : axes) list.insert(list.end(), root_axes(a).begin(), root_axes(a).end());
  const auto group = impl_->root->groups.find(list);
  return group == impl_->root->groups.end() ? nullptr : group->second.get();
}

DeviceMesh DeviceMesh::slice(std::span<const std::string> names) const {
  check(!names.empty(), "{}: a slice needs the name of at least one axis", describe());
  std::vector<Axis> axes;
  std::vector<std::vector<int>> root_axes;
  int last = -1;
  for (const std::string& name : names) {
    std::vector<int> list;
    int size = 0;
    if (has_axis(name)) {
      const int a = axis(name);
      list.assign(this->root_axes(a).begin(), this->root_axes(a).end());
      size = this->size(a);
    } else {  // flattened axes go by their name too
      const auto known = impl_->root->flattened.find(name);
      check(known != impl_->root->flattened.end(), "{} has no axis \"{}\"", describe(), name);
      list = known->second;
      for (int a : list)
        check(std::any_of(impl_->root_axes.begin(), impl_->root_axes.end(),
                          [a](const auto& mine) { return std::find(mine.begin(), mine.end(), a) != mine.end(); }),
              "{} does not have the axes that \"{}\" is made of", describe(), name);
      size = impl_->root->groups.at(list)->size();
    }
    check(list.front() > last, "{}: axes of a slice are named in the order of the mesh, \"{}\" comes too late",
          describe(), name);
    last = list.back();
    axes.push_back({name, size});
    root_axes.push_back(std::move(list));
  }
  return DeviceMesh(mesh_over(*impl_->root, axes, root_axes));
}

DeviceMesh DeviceMesh::flatten(std::span<const std::string> names, std::string name) const {
  check(!names.empty(), "{}: flatten() needs the names of axes", describe());
  std::vector<int> list;
  std::string joined;
  for (const std::string& n : names) {
    const int a = axis(n);
    check(list.empty() || root_axes(a).front() > list.back(),
          "{}: axes are flattened in the order of the mesh, \"{}\" comes too late", describe(), n);
    list.insert(list.end(), root_axes(a).begin(), root_axes(a).end());
    joined += (joined.empty() ? "" : "_") + n;
  }
  if (name.empty()) name = std::move(joined);
  Root& root = *impl_->root;
  for (const std::size_t a : indices(root.axes))
    check(root.axes[a].name != name || list == std::vector<int>{static_cast<int>(a)},
          "{}: \"{}\" is an axis already; name the flattened axes differently", describe(), name);
  if (const auto known = root.flattened.find(name); known != root.flattened.end())
    check(known->second == list, "{}: \"{}\" names other flattened axes already", describe(), name);
  auto& group = root.groups[list];
  if (!group) {
    group = root.group->subgroup(ranks_along(root.axes, root.coordinates, list), name);
    name_group(group);
    forget_plans();  // they do not use this group yet; all ranks forget now, because all must plan alike
  }
  root.flattened[name] = list;
  return DeviceMesh(mesh_over(*impl_->root, {{name, group->size()}}, {list}));
}

DeviceMesh DeviceMesh::flatten() const {
  std::vector<std::string> names;
  for (const Axis& a : axes()) names.push_back(a.name);
  return flatten(names);
}

DeviceMesh DeviceMesh::unflatten(std::string_view name, std::vector<Axis> parts) const {
  const int a = axis(name);
  check(!parts.empty(), "{}: unflatten() of \"{}\" needs the new axes", describe(), name);
  std::int64_t product = 1;
  for (const Axis& part : parts) product *= part.size;
  check(product == size(a), "{}: {} has {} places, axis \"{}\" has {} ranks: the sizes must multiply to that",
        describe(), describe_axes(parts), product, name, size(a));
  const std::vector<int>& list = impl_->root_axes[index(a)];
  if (list.size() == 1) return with_parts(a, parts);
  std::vector<Axis> made_of;
  for (const int r : list) made_of.push_back(impl_->root->axes[static_cast<std::size_t>(r)]);
  check(made_of == parts, "{}: axis \"{}\" is flattened from {}, and can be split into these only, not into {}",
        describe(), name, describe_axes(made_of), describe_axes(parts));
  std::vector<Axis> axes = this->axes();
  std::vector<std::vector<int>> root_axes = impl_->root_axes;
  axes.erase(axes.begin() + a);
  root_axes.erase(root_axes.begin() + a);
  for (const std::size_t i : indices(parts)) {
    const auto at = static_cast<std::ptrdiff_t>(i) + a;
    axes.insert(axes.begin() + at, parts[i]);
    root_axes.insert(root_axes.begin() + at, {list[i]});
  }
  return DeviceMesh(mesh_over(*impl_->root, axes, root_axes));
}

// A root whose axes are finer: what is a list of this root's axes is one of the new root's, with the same group.
DeviceMesh DeviceMesh::with_parts(int axis, const std::vector<Axis>& parts) const {
  const Root& old = *impl_->root;
  const int split = root_axes(axis)[0], more = static_cast<int>(parts.size()) - 1;
  const auto finer = [&](std::span<const int> list) {
    std::vector<int> result;
    for (const int a : list)
      for (int i = 0; i <= (a == split ? more : 0); ++i) result.push_back(a > split ? a + more : a + i);
    return result;
  };
  std::vector<Axis> root_axes = old.axes;
  root_axes.erase(root_axes.begin() + split);
  root_axes.insert(root_axes.begin() + split, parts.begin(), parts.end());
  check_axes(root_axes, old.group->size());
  for (const auto& [name, list] : old.flattened)
    for (const Axis& part : parts)
      check(part.name != name, "{}: \"{}\" names flattened axes already", describe(), name);

  KnownRoots& known_roots = RankContext::current().state<KnownRoots>();
  std::vector<std::weak_ptr<Root>>& roots = known_roots.roots;
  std::shared_ptr<Root> root;
  for (const auto& r : roots)
    if (const auto known = r.lock(); known && known->group == old.group && known->axes == root_axes) root = known;
  if (!root) {
    root = std::make_shared<Root>();
    root->former_layouts = known_roots.former_layouts;
    root->group = old.group;
    root->axes = root_axes;
    root->coordinates = coordinates_at(root_axes, old.group->rank());
    for (const auto& [list, group] : old.groups) root->groups[finer(list)] = group;
    for (const auto& [name, list] : old.flattened) root->flattened[name] = finer(list);
    // Divided from the ranks of the axis, whose deadline and link they take over: the job's are those of all axes.
    ProcessGroup& whole = *old.groups.at({split});
    const std::vector<int> place = coordinates_at(parts, whole.rank());
    for (int i = 0; i <= more; ++i) {
      auto& group = root->groups[{split + i}];
      if (group) continue;
      group = whole.subgroup(ranks_along(parts, place, {&i, 1}), parts[static_cast<std::size_t>(i)].name);
      name_group(group);
    }
    roots.push_back(root);
  }
  std::vector<Axis> axes = this->axes();
  std::vector<std::vector<int>> lists;
  for (const std::vector<int>& list : impl_->root_axes) lists.push_back(finer(list));
  axes.erase(axes.begin() + axis);
  lists.erase(lists.begin() + axis);
  for (int i = 0; i <= more; ++i) {
    axes.insert(axes.begin() + axis + i, parts[static_cast<std::size_t>(i)]);
    lists.insert(lists.begin() + axis + i, {split + i});
  }
  const std::string& whole = old.axes[static_cast<std::size_t>(split)].name;
  const bool is_taken = std::ranges::any_of(root_axes, [&](const Axis& a) { return a.name == whole; });
  if (!is_taken) root->flattened.emplace(whole, finer({&split, 1}));
  return DeviceMesh(mesh_over(*root, axes, lists));
}

DeviceMesh DeviceMesh::concatenate(std::span<const DeviceMesh> meshes) {
  check(!meshes.empty(), "concatenate() needs at least one mesh");
  Root& root = *meshes[0].impl_->root;
  std::vector<Axis> axes;
  std::vector<std::vector<int>> lists;
  for (const DeviceMesh& mesh : meshes) {
    check(mesh.impl_->root == &root, "{} and {} are not of one root mesh: concatenate() joins slices of one mesh",
          meshes[0].describe(), mesh.describe());
    for (const int a : up_to(mesh.ndim())) {
      const std::vector<int>& list = mesh.impl_->root_axes[mesh.index(a)];
      check(lists.empty() || list.front() > lists.back().back(),
            "concatenate(): axes come in the order of {} and each once, \"{}\" comes too late", mesh.root().describe(),
            mesh.axis_name(a));
      axes.push_back(mesh.axes()[mesh.index(a)]);
      lists.push_back(list);
    }
  }
  return DeviceMesh(mesh_over(root, axes, lists));
}

DeviceMesh DeviceMesh::root() const {
  std::vector<std::vector<int>> lists;
  for (const int a : up_to(static_cast<int>(impl_->root->axes.size()))) lists.push_back({a});
  return DeviceMesh(mesh_over(*impl_->root, impl_->root->axes, lists));
}

std::vector<int> DeviceMesh::ranks() const {
  std::vector<int> list;
  for (int a = 0; a < ndim(); ++a) list.insert(list.end(), root_axes(a).begin(), root_axes(a).end());
  return ranks_along(impl_->root->axes, impl_->root->coordinates, list);
}

bool DeviceMesh::shares_group(const DeviceMesh& other) const { return impl_->root->group == other.impl_->root->group; }

std::string DeviceMesh::describe() const { return describe_axes(axes()); }

}  // namespace sherd
