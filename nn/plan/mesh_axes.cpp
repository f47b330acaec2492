#include "nn/plan/mesh_axes.h"

#include <algorithm>

#include "runtime/tensor/nearest.h"
#include "runtime/tensor/quantity.h"

namespace sherd::nn {

namespace {

using Axes = std::vector<DeviceMesh::Axis>;

DeviceMesh::Axis parse_axis(std::string_view text, std::string_view whole) {
  const std::size_t equals = text.find('=');
  check(equals != text.npos, "mesh = \"{}\": \"{}\" is no axis=size; for example dp=2,tp=2, slowest first", whole,
        text);
  const std::string name(text.substr(0, equals));
  const std::string_view size = text.substr(equals + 1);
  check_axis_name(name, "mesh", whole);
  const std::optional<int> number = number_of<int>(size);
  check(number && *number >= 1, "mesh = \"{}\": {} must have a size of at least 1, got \"{}\"", whole, name, size);
  return {name, *number};
}

auto find(const Axes& axes, std::string_view name) { return std::ranges::find(axes, name, &DeviceMesh::Axis::name); }

}  // namespace

void check_axis_name(const std::string& name, std::string_view key, std::string_view whole) {
  static const std::vector<std::string> names{"replicate", "dp", "tp"};
  check(std::ranges::find(names, name) != names.end(), "{} = \"{}\": there is no axis \"{}\"{}; the axes are {}", key,
        whole, name, did_you_mean(name, names), fmt::join(names, ", "));
}

MeshAxes MeshAxes::parse(std::string_view text) {
  Axes axes;
  for (std::size_t start = 0; !text.empty() && start <= text.size();) {
    const std::size_t end = std::min(text.find(',', start), text.size());
    DeviceMesh::Axis axis = parse_axis(text.substr(start, end - start), text);
    check(find(axes, axis.name) == axes.end(), "mesh = \"{}\" names {} twice", text, axis.name);
    axes.push_back(std::move(axis));
    start = end + 1;
  }
  const auto replicate = find(axes, "replicate"), dp = find(axes, "dp");
  check(replicate == axes.end() || dp == axes.end() || dp == replicate + 1,
        "mesh = \"{}\": replicate comes right before dp: copies of the shards are farther apart than the shards", text);
  return MeshAxes(std::move(axes));
}

std::string MeshAxes::text() const {
  std::string text;
  for (const Axis& axis : axes_) text += fmt::format("{}{}={}", text.empty() ? "" : ",", axis.name, axis.size);
  return text;
}

int MeshAxes::size(std::string_view name) const {
  const auto axis = find(axes_, name);
  return axis == axes_.end() ? 0 : axis->size;
}

std::vector<MeshAxes::Axis> MeshAxes::over(int ranks) const {
  if (is_open()) return {{"dp", ranks}};
  Axes axes = axes_;
  if (!has("dp")) {
    const auto replicate = find(axes, "replicate");
    axes.insert(replicate == axes.end() ? axes.begin() : replicate + 1, {"dp", 1});
  }
  return axes;
}

std::int64_t MeshAxes::count(int ranks) const {
  constexpr std::int64_t kMost = std::int64_t{1}
                                 << 31;  // more are as impossible, and a product of three would overflow
  std::int64_t product = 1;
  for (const Axis& axis : over(ranks)) product = std::min(product * axis.size, kMost);
  return product;
}

std::vector<MeshAxes::Axis> MeshAxes::of(int ranks) const {
  const std::int64_t wanted = count(ranks);
  check(
      wanted == ranks,
      "mesh = \"{}\" is for {} rank{}, this run has {}; start {} (sherd run -n {} -- ...), or pass --mesh \"\" for dp "
      "over the ranks there are",
      text(), wanted, wanted == 1 ? "" : "s", ranks, wanted, wanted);
  return over(ranks);
}

MeshAxes MeshAxes::with_replicas(int ranks, int hosts, std::string_view strategy) const {
  check(hosts >= 1 && ranks % hosts == 0, "strategy = {}: {} ranks on {} hosts are not equally many on each", strategy,
        ranks, hosts);
  if (has("replicate")) return *this;
  check(hosts > 1,
        "strategy = {} copies the shards over an axis of the mesh, mesh = \"{}\" names none, and all ranks are on one "
        "host: {}",
        strategy, text(),
        ranks % 2 == 0 && ranks > 2 ? fmt::format("pass --mesh replicate=2,dp={}", ranks / 2)
                                    : "start more, as sherd run -n 4 -- ..., with --mesh replicate=2,dp=2");
  Axes axes = over(ranks / hosts);
  check(axes.front().name == "dp",
        "strategy = {} on {} hosts: mesh = \"{}\" has another axis before dp, so it must say where replicate comes",
        strategy, hosts, text());
  const std::int64_t of_a_host = count(ranks / hosts);
  check(of_a_host == ranks / hosts,
        "strategy = {} on {} hosts of {} ranks: mesh = \"{}\" names no replicate, so it is that of one host, and it is "
        "for {} ranks",
        strategy, hosts, ranks / hosts, text(), of_a_host);
  axes.insert(axes.begin(), {"replicate", hosts});
  return MeshAxes(std::move(axes));
}

int count_data_ranks(const std::vector<DeviceMesh::Axis>& axes) {
  int count = 1;
  for (const DeviceMesh::Axis& axis : axes)
    if (axis.name != "tp") count *= axis.size;
  return count;
}

}  // namespace sherd::nn
