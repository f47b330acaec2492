#include "runtime/exec/cluster.h"

#include <algorithm>

#include "runtime/tensor/error.h"

namespace sherd {

namespace {
const LinkPrice* shaped_link(const Cluster& cluster, std::string_view label) {
  if (const auto own = cluster.axes.find(label); own != cluster.axes.end()) return &own->second;
  const auto all = cluster.axes.find("");
  return all == cluster.axes.end() ? nullptr : &all->second;
}
}  // namespace

// A ring passes every hop between its ranks, so the slower of both fabrics holds it up.
double GroupLink::seconds(Movement movement, double bytes) const {
  if (shaped) return shaped->seconds(movement, ranks, bytes);
  const double inside = in ? in->seconds(movement, ranks, bytes) : 0;
  return out ? std::max(inside, out->seconds(movement, ranks, bytes * sharing)) : inside;
}

bool GroupLink::covers(Movement movement, double bytes) const {
  if (shaped) return true;
  return (!in || in->covers(movement, ranks, bytes)) && (!out || out->covers(movement, ranks, bytes * sharing));
}

std::string_view GroupLink::name() const {
  if (shaped) return "link";
  return out ? out->name : in->name;
}

// NICs that a host has are divided by the groups that leave it. A group uses at most one for each of its ranks there.
GroupLink group_link(const Cluster& cluster, std::string_view label, const RankGrid& grid, int rank) {
  GroupLink link{.ranks = grid.size(),
                 .shaped = shaped_link(cluster, label),
                 .host = &cluster.in,
                 .core_share = cluster.core_share};
  if (link.shaped) return link;
  link.in = &cluster.in;
  const GroupSpan span = span_of(grid, cluster.hosts, rank);
  if (span.hosts == 1) return link;
  check(cluster.out.has_value(),
        "groups of the axis \"{}\" span {} hosts, and no fabric is given between hosts; give --fabric in={},out=NAME",
        label, span.hosts, cluster.in.name);
  link.out = &*cluster.out;
  if (span.per_host == 1) link.in = nullptr;  // no hop of its ring stays in a host
  const double own = span.per_host;
  const double nics = link.out->nics > 0 ? std::min(own, double(link.out->nics) / span.sharing) : own;
  link.sharing = 1 / nics;
  return link;
}

}  // namespace sherd
