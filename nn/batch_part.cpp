// A unit says that ranks along its axes have data of their own, and that holds for all that runs inside it. So a unit
// of experts, over fewer axes than the model around it, does not make the data of the others equal; and one over more
// axes, as an encoder's that takes the ranks of tensor parallelism for data, adds to them:
//
//   model     fully_shard over mesh(dp=2,ep=2) as one axis      axes dp, ep
//     experts fully_shard over mesh["dp"]                       axes dp, ep
#include "nn/batch_part.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "dtensor/spec.h"
#include "runtime/tensor/indices.h"

namespace sherd::nn {

namespace {

/// Axes of a root mesh, as bits. Those of two roots have no order among each other: of two meshes that have different
/// roots the one whose ranks are all those of both counts.
struct DataRanks {
  std::optional<DeviceMesh> root;
  std::uint64_t axes = 0;
  std::optional<std::pair<DeviceMesh, DeviceMesh>> apart;  // neither has all ranks of both

  static std::uint64_t bits_of(const DeviceMesh& mesh) {
    std::uint64_t bits = 0;
    for (const int axis : up_to(mesh.ndim()))
      for (const int a : mesh.root_axes(axis)) bits |= std::uint64_t{1} << a;
    return bits;
  }
  /// Ranks with data of their own, as the root's group numbers them.
  std::set<int> ranks() const {
    std::set<int> found;
    for (const int r : up_to(root->num_ranks())) {
      const std::vector<int> at = root->coordinates_of(r);
      bool is_one = true;
      for (const int a : up_to(root->ndim()))
        is_one &= (axes >> a & 1U) != 0 || at[static_cast<std::size_t>(a)] == root->coordinate(a);
      if (is_one) found.insert(r);
    }
    return found;
  }
  void add(const DeviceMesh& mesh) {
    if (!root) root = mesh.root();
    if (*root == mesh.root()) return void(axes |= bits_of(mesh));
    const std::set<int> known = ranks(), more = ranks_of(mesh);
    if (std::ranges::includes(known, more) && root->shares_group(mesh)) return;
    if (!std::ranges::includes(more, known) || !root->shares_group(mesh)) apart.emplace(*root, mesh);
    root = mesh.root();
    axes = bits_of(mesh);
  }
  void add_hooks_of(const Module& module) {
    for (const auto& hook : module.hooks())
      if (const DeviceMesh* const mesh = hook->data_mesh()) add(*mesh);
  }
  void add_below(const Module& module) {
    add_hooks_of(module);
    for (const auto& child : module.children()) add_below(*child);
  }
  void remove(const DeviceMesh& mesh) {
    if (*root == mesh.root()) return void(axes &= ~bits_of(mesh));
    const std::set<int> known = ranks(), whole = ranks_of(mesh);
    std::vector<int> common;
    std::ranges::set_intersection(known, whole, std::back_inserter(common));
    if (root->shares_group(mesh) && common.size() == 1) return;  // this rank
    if (root->shares_group(mesh) && common.size() == known.size()) axes = 0;
    else apart.emplace(*root, mesh);
  }
  static std::set<int> ranks_of(const DeviceMesh& mesh) {
    const std::vector<int> list = mesh.ranks();
    return {list.begin(), list.end()};
  }
  BatchPart part() const {
    BatchPart part;
    if (!root) return part;
    for (const int axis : up_to(root->ndim())) {
      if ((axes >> axis & 1U) == 0) continue;
      part.first = part.first * root->size(axis) + root->coordinate(axis);
      part.all *= root->size(axis);
    }
    return part;
  }
};

DataRanks ranks_around(const Module& module) {
  DataRanks ranks;
  const Module* top = &module;
  for (const Module* each = &module; each; each = each->parent()) {
    ranks.add_hooks_of(*each);
    top = each;
  }
  if (ranks.root) return ranks;
  ranks.add_below(*top);
  return ranks.apart ? DataRanks() : ranks;
}

}  // namespace

BatchPart batch_part(const Module& module, const Tensor& x) {
  const DrawnBy& by = drawn_by();
  if (by.part) return by.micro.of(*by.part);
  DataRanks ranks = ranks_around(module);
  if (ranks.root && x.is_distributed()) ranks.remove(Spec::from(x).mesh());
  if (ranks.apart)
    fail(
        "{} is to be drawn for on {} and on {}, of which neither has all ranks of the other: make both of one mesh, or "
        "say by set_batch_part() which rows this rank has",
        x, ranks.apart->first.describe(), ranks.apart->second.describe());
  return by.micro.of(ranks.part());
}

BatchElements batch_elements(const Module& module, const Tensor& x) {
  const BatchPart part = batch_part(module, x);
  const std::int64_t count = x.numel();
  if (count == 0) return {0, 0};
  check(part.rows > 0, "{} is to be drawn for, and set_batch_part() says that this rank has none of {} rows", x,
        part.all);
  return {count * part.first / part.rows, count * part.all / part.rows};
}

}  // namespace sherd::nn
