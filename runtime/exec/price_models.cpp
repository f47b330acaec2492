// Rates and curves: how work of a size between, or beyond, the sizes that somebody has measured is priced.
#include <algorithm>
#include <array>
#include <cmath>
#include <span>

#include <fmt/ranges.h>

#include "runtime/exec/price.h"
#include "runtime/tensor/error.h"
#include "runtime/tensor/indices.h"

namespace sherd {

namespace {

constexpr std::array<std::string_view, kNumWorkKinds> kWorkKinds{"contraction", "attention", "pointwise", "reduction",
                                                                 "copy",        "optimizer", "issue"};

double between(double x, double x0, double y0, double x1, double y1) {
  return x0 == x1 ? y0 : y0 + (y1 - y0) * (x - x0) / (x1 - x0);
}

// Points of one number of ranks, by bytes.
double seconds_of(std::span<const FabricModel::Point> points, double bytes) {
  if (bytes <= points.front().bytes) return points.front().seconds;
  if (points.size() == 1) return points[0].seconds * bytes / points[0].bytes;
  auto above = std::ranges::lower_bound(points, bytes, {}, &FabricModel::Point::bytes);
  if (above == points.end()) --above;
  const FabricModel::Point &a = *std::prev(above), &b = *above;
  return between(bytes, a.bytes, a.seconds, b.bytes, b.seconds);
}

std::span<const FabricModel::Point> points_of(const std::vector<FabricModel::Point>& curve, int ranks) {
  const auto [first, last] = std::ranges::equal_range(curve, ranks, {}, &FabricModel::Point::ranks);
  return {first, last};
}

// What is packed and unpacked does not pass a fabric, so that all_to_all moves its bytes once there.
double by_link(const LinkPrice& link, Movement movement, int ranks, double bytes) {
  return link.seconds(movement == Movement::all_to_all ? Movement::gather : movement, ranks, bytes);
}

bool is_product(WorkKind kind) { return kind == WorkKind::contraction || kind == WorkKind::attention; }

/// The rate of products of a type, or null.
const Rate* product_rate(const DeviceModel& device, const CallWork& work) {
  if (work.kind == WorkKind::attention)
    if (const auto own = device.attention.find(work.dtype); own != device.attention.end()) return &own->second;
  const auto found = device.products.find(work.dtype);
  return found == device.products.end() ? nullptr : &found->second;
}

const Rate& byte_rate(const DeviceModel& device, WorkKind kind) {
  if (const auto own = device.rows.find(kind); own != device.rows.end()) return own->second;
  return kind == WorkKind::copy ? device.copied : device.read;
}

}  // namespace

double Rate::at(double size) const {
  if (points.empty() || size <= points.front().size) return points.empty() ? 0 : points.front().per_second;
  const auto above = std::ranges::lower_bound(points, size, {}, &Point::size);
  if (above == points.end()) return points.back().per_second;
  const Point &a = *std::prev(above), &b = *above;
  return between(std::log(size), std::log(a.size), a.per_second, std::log(b.size), b.per_second);
}

bool Rate::covers(double size) const {
  if (is_extrapolated || points.empty()) return false;
  return points.size() == 1 || (size >= points.front().size && size <= points.back().size);
}

double FabricModel::seconds(Movement movement, int ranks, double bytes) const {
  const std::vector<Point>& curve = curves[static_cast<std::size_t>(movement)];
  if (curve.empty()) return by_link(link, movement, ranks, bytes);
  if (const auto own = points_of(curve, ranks); !own.empty()) return seconds_of(own, bytes);
  const auto above = std::ranges::upper_bound(curve, ranks, {}, &Point::ranks);
  if (above == curve.begin() || above == curve.end()) {
    const int nearest = above == curve.begin() ? curve.front().ranks : curve.back().ranks;
    const double other = by_link(link, movement, nearest, bytes);
    return seconds_of(points_of(curve, nearest), bytes) *
           (other > 0 ? by_link(link, movement, ranks, bytes) / other : 1);
  }
  const int fewer = std::prev(above)->ranks, more = above->ranks;
  return between(ranks, fewer, seconds_of(points_of(curve, fewer), bytes), more,
                 seconds_of(points_of(curve, more), bytes));
}

FabricModel FabricModel::with_rate(double rate) const {
  FabricModel other = *this;
  for (std::vector<Point>& curve : other.curves)
    for (Point& point : curve) point.seconds *= link.bytes_per_second / rate;
  other.link.bytes_per_second = rate;
  return other;
}

bool FabricModel::covers(Movement movement, int ranks, double bytes) const {
  const std::vector<Point>& curve = curves[static_cast<std::size_t>(movement)];
  if (curve.empty()) return true;
  return std::ranges::any_of(curve, [&](const Point& p) { return p.ranks <= ranks && p.bytes <= bytes; }) &&
         std::ranges::any_of(curve, [&](const Point& p) { return p.ranks >= ranks && p.bytes >= bytes; });
}

std::string_view name(WorkKind kind) { return kWorkKinds[static_cast<std::size_t>(kind)]; }

WorkKind work_kind_from_name(std::string_view text) {
  const auto found = std::ranges::find(kWorkKinds, text);
  check(found != kWorkKinds.end(), "\"{}\" is no kind of work; kinds are {}", text, fmt::join(kWorkKinds, ", "));
  return static_cast<WorkKind>(found - kWorkKinds.begin());
}

double DeviceModel::seconds(const CallWork& work) const {
  if (work.kind == WorkKind::issue) return call_seconds;
  if (!is_product(work.kind)) return call_seconds + work.bytes / byte_rate(*this, work.kind).at(work.bytes);
  const Rate* const rate = product_rate(*this, work);
  check(rate != nullptr, "the device model {} has no rate for products of {}; give one in \"flops\"", this->name,
        sherd::name(work.dtype));
  return call_seconds + std::max(work.flops / rate->at(work.flops), work.bytes / read.at(work.bytes));
}

double DeviceModel::home_seconds(double bytes) const {
  const auto host = links.find("host");
  if (host == links.end()) return seconds({.kind = WorkKind::copy, .bytes = bytes});
  return host->second.link.call_seconds + host->second.link.carry_seconds(bytes);
}

bool DeviceModel::covers(const CallWork& work) const {
  if (work.kind == WorkKind::issue) return true;
  if (!is_product(work.kind)) return byte_rate(*this, work.kind).covers(work.bytes);
  const Rate* const rate = product_rate(*this, work);
  return rate && rate->covers(work.flops);
}

}  // namespace sherd
