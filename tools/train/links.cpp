#include "tools/train/links.h"

#include <algorithm>
#include <cmath>
#include <ranges>

#include "runtime/tensor/quantity.h"
#include "tools/train/flags.h"

namespace sherd::train {

namespace {

AxisLink parse_link(std::string_view text, std::string_view whole) {
  AxisLink link;
  if (const std::size_t equals = text.find('='); equals != text.npos) {
    link.axis = text.substr(0, equals);
    nn::check_axis_name(link.axis, "link", whole);
    text.remove_prefix(equals + 1);
  }
  const std::size_t comma = text.find(',');
  const std::optional<double> rate = parse_byte_rate(text.substr(0, comma));
  const std::optional<double> latency = comma == text.npos ? std::nullopt : parse_number(text.substr(comma + 1));
  check(rate && latency && std::isfinite(*rate) && *rate > 0 && *latency >= 0 && *latency < 1e6,
        "link must be BYTES_PER_S,SECONDS with a positive rate and a latency of at least 0, as 1e9,20e-6 or 10GB,0, or "
        "one of each axis, dp=2e9,0;replicate=2e8,0; got \"{}\"",
        whole);
  link.shape = {*rate, *latency};
  return link;
}

}  // namespace

Links Links::parse(std::string_view text) {
  Links links;
  links.text_ = text;
  if (text == "none") return links;
  for (const auto part : std::views::split(text, ';')) {
    AxisLink link = parse_link({part.begin(), part.end()}, text);
    for (const AxisLink& other : links.links_)
      check(!other.axis.empty() && !link.axis.empty() && other.axis != link.axis,
            "link = \"{}\" gives {} two links: name every axis once, or give one link without a name for all", text,
            link.axis.empty() || other.axis.empty() ? "an axis" : link.axis);
    links.links_.push_back(std::move(link));
  }
  return links;
}

std::optional<LinkShape> Links::over(std::span<const DeviceMesh::Axis> axes) const {
  std::optional<LinkShape> slowest;
  for (const DeviceMesh::Axis& axis : axes)
    for (const AxisLink& link : links_) {
      if (axis.size == 1 || (!link.axis.empty() && link.axis != axis.name)) continue;
      if (!slowest) slowest = link.shape;
      slowest->bytes_per_second = std::min(slowest->bytes_per_second, link.shape.bytes_per_second);
      slowest->seconds = std::max(slowest->seconds, link.shape.seconds);
    }
  return slowest;
}

void Links::shape(const nn::JobMesh& mesh) const {
  for (const AxisLink& link : links_)
    check(link.axis.empty() || mesh.root().has_axis(link.axis),
          "link = \"{}\" shapes the axis {}, which {} does not have", text(), link.axis, mesh.root().describe());
  const auto shape_group = [this](ProcessGroup& group, std::span<const DeviceMesh::Axis> axes) {
    if (const std::optional<LinkShape> link = over(axes)) group.host().shape_link(*link);
  };
  shape_group(*mesh.group(), mesh.root().axes());
  for (int axis = 0; axis < mesh.root().ndim(); ++axis)
    shape_group(mesh.root().group(axis), std::span(mesh.root().axes()).subspan(static_cast<std::size_t>(axis), 1));
  shape_group(mesh.data_group(), mesh.data().axes());
}

}  // namespace sherd::train
