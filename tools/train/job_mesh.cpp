#include "tools/train/job_mesh.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "runtime/tensor/nearest.h"
#include "runtime/tensor/quantity.h"
#include "tools/train/config.h"

namespace sherd {

namespace {

using Axes = std::vector<DeviceMesh::Axis>;

const std::vector<std::string> kAxes{"replicate", "dp", "tp"};
constexpr const char* kExample = "for example dp=2,tp=2, slowest first";

/// `key` and `whole` name the setting that names the axis.
void check_axis(const std::string& name, std::string_view key, std::string_view whole) {
  check(std::find(kAxes.begin(), kAxes.end(), name) != kAxes.end(),
        "{} = \"{}\": there is no axis \"{}\"{}; the axes are {}", key, whole, name, did_you_mean(name, kAxes),
        fmt::join(kAxes, ", "));
}

DeviceMesh::Axis parse_axis(std::string_view text, std::string_view whole) {
  const std::size_t equals = text.find('=');
  check(equals != text.npos, "mesh = \"{}\": \"{}\" is no axis=size; {}", whole, text, kExample);
  const std::string name(text.substr(0, equals));
  const std::string_view size = text.substr(equals + 1);
  check_axis(name, "mesh", whole);
  int number = 0;
  const auto [end, error] = std::from_chars(size.data(), size.data() + size.size(), number);
  check(error == std::errc{} && end == size.data() + size.size() && number >= 1,
        "mesh = \"{}\": {} must have a size of at least 1, got \"{}\"", whole, name, size);
  return {name, number};
}

AxisLink parse_link(std::string_view text, std::string_view whole) {
  AxisLink link;
  if (const std::size_t equals = text.find('='); equals != text.npos) {
    link.axis = text.substr(0, equals);
    check_axis(link.axis, "link", whole);
    text.remove_prefix(equals + 1);
  }
  const std::size_t comma = text.find(',');
  const std::optional<double> rate = parse_byte_rate(text.substr(0, comma));
  const std::optional<double> latency = comma == text.npos ? std::nullopt : number_of(text.substr(comma + 1));
  check(rate && latency && std::isfinite(*rate) && *rate > 0 && *latency >= 0 && *latency < 1e6,
        "link must be BYTES_PER_S,SECONDS with a positive rate and a latency of at least 0, as 1e9,20e-6 or 10GB,0, or "
        "one of each axis, dp=2e9,0;replicate=2e8,0; got \"{}\"",
        whole);
  link.shape = {*rate, *latency};
  return link;
}

std::size_t position(const Axes& axes, std::string_view name) {
  const auto at = std::find_if(axes.begin(), axes.end(), [&](const DeviceMesh::Axis& a) { return a.name == name; });
  return static_cast<std::size_t>(at - axes.begin());
}

bool has(const Axes& axes, std::string_view name) { return position(axes, name) < axes.size(); }

DeviceMesh data_slice(const DeviceMesh& root) {
  return root.has_axis("replicate") ? root.slice({"replicate", "dp"}) : root["dp"];
}

/// The most ranks with data of their own, below `data_ranks`, that the batch divides into: "2 ranks".
std::string ranks_that_divide(const TrainConfig& config, std::int64_t data_ranks) {
  std::int64_t ranks = std::max<std::int64_t>(data_ranks - 1, 1);
  while (ranks > 1 && config.batch % (ranks * config.accumulate) != 0) --ranks;
  return fmt::format("{} rank{}", ranks, ranks == 1 ? "" : "s");
}

std::optional<DeviceMesh> slice_if(const DeviceMesh& root, const std::string& name) {
  return root.has_axis(name) ? std::optional(root[name]) : std::nullopt;
}

}  // namespace

Axes parse_mesh(std::string_view text, int ranks) {
  if (text.empty()) return {{"dp", ranks}};
  Axes axes;
  for (std::size_t start = 0; start <= text.size();) {
    const std::size_t end = std::min(text.find(',', start), text.size());
    axes.push_back(parse_axis(text.substr(start, end - start), text));
    check(position(axes, axes.back().name) == axes.size() - 1, "mesh = \"{}\" names {} twice", text, axes.back().name);
    start = end + 1;
  }
  const std::size_t replicate = position(axes, "replicate");
  if (!has(axes, "dp"))
    axes.insert(axes.begin() + (replicate < axes.size() ? static_cast<std::ptrdiff_t>(replicate) + 1 : 0), {"dp", 1});
  check(!has(axes, "replicate") || position(axes, "dp") == position(axes, "replicate") + 1,
        "mesh = \"{}\": replicate comes right before dp: copies of the shards are farther apart than the shards", text);
  return axes;
}

std::int64_t count_ranks(std::string_view text, int ranks) {
  constexpr std::int64_t kMost = std::int64_t{1}
                                 << 31;  // more are as impossible, and a product of three would overflow
  std::int64_t product = 1;
  for (const DeviceMesh::Axis& axis : parse_mesh(text, ranks)) product = std::min(product * axis.size, kMost);
  return product;
}

Axes mesh_of(std::string_view text, int ranks) {
  const std::int64_t wanted = count_ranks(text, ranks);
  check(
      wanted == ranks,
      "mesh = \"{}\" is for {} rank{}, this run has {}; start {} (sherd run -n {} -- ...), or pass --mesh \"\" for dp "
      "over the ranks there are",
      text, wanted, wanted == 1 ? "" : "s", ranks, wanted, wanted);
  return parse_mesh(text, ranks);
}

std::string mesh_with_replicas(std::string_view text, int ranks, int hosts, std::string_view strategy) {
  check(hosts >= 1 && ranks % hosts == 0, "strategy = {}: {} ranks on {} hosts are not equally many on each", strategy,
        ranks, hosts);
  const Axes axes = parse_mesh(text, ranks / hosts);
  if (has(axes, "replicate")) return std::string(text);
  check(hosts > 1,
        "strategy = {} copies the shards over an axis of the mesh, mesh = \"{}\" names none, and all ranks are on one "
        "host: {}",
        strategy, text,
        ranks % 2 == 0 && ranks > 2 ? fmt::format("pass --mesh replicate=2,dp={}", ranks / 2)
                                    : "start more, as sherd run -n 4 -- ..., with --mesh replicate=2,dp=2");
  check(axes.front().name == "dp",
        "strategy = {} on {} hosts: mesh = \"{}\" has another axis before dp, so it must say where replicate comes",
        strategy, hosts, text);
  std::string result = fmt::format("replicate={}", hosts);
  for (const DeviceMesh::Axis& axis : axes) result += fmt::format(",{}={}", axis.name, axis.size);
  const std::int64_t of_a_host = count_ranks(text, ranks / hosts);
  check(of_a_host == ranks / hosts,
        "strategy = {} on {} hosts of {} ranks: mesh = \"{}\" names no replicate, so it is that of one host, and it is "
        "for {} ranks",
        strategy, hosts, ranks / hosts, text, of_a_host);
  return result;
}

int count_data_ranks(const Axes& axes) {
  int count = 1;
  for (const DeviceMesh::Axis& axis : axes)
    if (axis.name != "tp") count *= axis.size;
  return count;
}

std::int64_t local_batch(const TrainConfig& config, std::int64_t data_ranks) {
  const std::int64_t parts = data_ranks * config.accumulate;
  const bool divides = config.batch % parts == 0;
  const bool can_split = config.mesh.empty() && config.model.kv_heads > 0 && config.model.kv_heads % data_ranks == 0;
  check(divides || config.resume.empty(),
        "batch = {} does not divide into {} ranks x {} micro-batches, and a resume keeps the batch; go on with {}{}",
        config.batch, data_ranks, config.accumulate, ranks_that_divide(config, data_ranks),
        can_split ? fmt::format(", or give the ranks to tp by --mesh dp=1,tp={}", data_ranks) : "");
  check(divides, "batch = {} does not divide into {} ranks x {} micro-batches; make it a multiple of {}", config.batch,
        data_ranks, config.accumulate, parts);
  return config.batch / data_ranks;
}

std::vector<AxisLink> parse_links(std::string_view text) {
  std::vector<AxisLink> links;
  for (std::size_t start = 0; !text.empty() && start <= text.size();) {
    const std::size_t end = std::min(text.find(';', start), text.size());
    AxisLink link = parse_link(text.substr(start, end - start), text);
    for (const AxisLink& other : links)
      check(!other.axis.empty() && !link.axis.empty() && other.axis != link.axis,
            "link = \"{}\" gives {} two links: name every axis once, or give one link without a name for all", text,
            link.axis.empty() || other.axis.empty() ? "an axis" : link.axis);
    links.push_back(std::move(link));
    start = end + 1;
  }
  return links;
}

std::optional<LinkShape> link_over(std::span<const AxisLink> links, std::span<const DeviceMesh::Axis> axes) {
  std::optional<LinkShape> slowest;
  for (const DeviceMesh::Axis& axis : axes)
    for (const AxisLink& link : links) {
      if (axis.size == 1 || (!link.axis.empty() && link.axis != axis.name)) continue;
      if (!slowest) slowest = link.shape;
      slowest->bytes_per_second = std::min(slowest->bytes_per_second, link.shape.bytes_per_second);
      slowest->seconds = std::max(slowest->seconds, link.shape.seconds);
    }
  return slowest;
}

JobMesh::JobMesh(std::string_view text, std::shared_ptr<ProcessGroup> group, std::string_view links)
    : group_(std::move(group)),
      root_(group_, mesh_of(text, group_->size())),
      data_(data_slice(root_)),
      tensor_(slice_if(root_, "tp")) {
  if (data_.ndim() > 1) flat_data_ = root_.flatten({"replicate", "dp"});
  data_group_ = flat_data_ ? &flat_data_->group() : &data_.group();
  shape_links(links);
}

void JobMesh::shape_links(std::string_view text) const {
  const std::vector<AxisLink> links = parse_links(text);
  for (const AxisLink& link : links)
    check(link.axis.empty() || root_.has_axis(link.axis), "link = \"{}\" shapes the axis {}, which {} does not have",
          text, link.axis, root_.describe());
  const auto shape = [&links](ProcessGroup& over, std::span<const DeviceMesh::Axis> axes) {
    if (const std::optional<LinkShape> link = link_over(links, axes)) over.host().shape_link(*link);
  };
  shape(*group_, root_.axes());
  for (int axis = 0; axis < root_.ndim(); ++axis)
    shape(root_.group(axis), std::span(root_.axes()).subspan(static_cast<std::size_t>(axis), 1));
  shape(*data_group_, data_.axes());
}

std::string JobMesh::rank_text() const {
  if (root_.ndim() == 1) return fmt::format("rank {} of {}", group_->rank(), group_->size());
  std::string coordinates;
  for (int axis = 0; axis < root_.ndim(); ++axis)
    coordinates +=
        fmt::format("{}{} {}", coordinates.empty() ? "" : ", ", root_.axis_name(axis), root_.coordinate(axis));
  return fmt::format("rank {} of {} ({})", group_->rank(), group_->size(), coordinates);
}

}  // namespace sherd
