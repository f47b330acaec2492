#include "runtime/exec/host_layout.h"

#include <algorithm>
#include <numeric>
#include <set>

#include <fmt/ranges.h>

#include "runtime/tensor/error.h"
#include "runtime/tensor/quantity.h"

namespace sherd {

RankGrid::RankGrid(std::vector<Dim> dims) : dims_(std::move(dims)) {
  std::int64_t covered = 1;  // ranks that the faster dims span
  for (auto dim = dims_.rbegin(); dim != dims_.rend(); ++dim) {
    check(dim->size > 1 && dim->stride > 0 && dim->stride % covered == 0 &&
              std::int64_t{dim->size} * dim->stride <= (std::int64_t{1} << 30),
          "\"{}\" is no grid of ranks: sizes are over 1, and a stride is a multiple of what the next dim covers",
          text());
    covered = std::int64_t{dim->size} * dim->stride;
  }
}

// The fastest dim is the longest run of equal steps from the first rank on; its groups' first ranks are a grid again.
RankGrid RankGrid::of(std::span<const int> ranks) {
  std::vector<Dim> dims;
  std::vector<int> left(ranks.begin(), ranks.end());
  while (left.size() > 1) {
    const int stride = left[1] - left[0];
    std::size_t size = 2;
    while (size < left.size() && left[size] - left[size - 1] == stride) ++size;
    std::vector<int> firsts;
    for (std::size_t i = 0; i < left.size(); ++i)
      if (i % size == 0) firsts.push_back(left[i]);
    dims.insert(dims.begin(), {static_cast<int>(size), stride});
    left = std::move(firsts);
  }
  const RankGrid grid(std::move(dims));
  check(!ranks.empty() && std::ranges::equal(grid.members(ranks[0]), ranks), "the ranks {} are no group of a grid",
        fmt::join(ranks, ","));
  return grid;
}

std::string RankGrid::text() const {
  std::string text;
  for (const Dim& dim : dims_) text += fmt::format("{}{}x{}", text.empty() ? "" : ",", dim.size, dim.stride);
  return text.empty() ? "1" : text;
}

RankGrid RankGrid::parse(std::string_view text) {
  std::vector<Dim> dims;
  if (text == "1") return {};
  for (std::string_view rest = text;;) {
    const std::string_view part = rest.substr(0, rest.find(','));
    const std::size_t x = std::min(part.find('x'), part.size());
    const auto size = number_of<int>(part.substr(0, x));
    const auto stride = number_of<int>(part.substr(std::min(x + 1, part.size())));
    check(size && stride && dims.size() < 32, "\"{}\" is no grid of ranks; give SIZExSTRIDE,... as 2x8,4x1", text);
    dims.push_back({*size, *stride});
    if (part.size() == rest.size()) return RankGrid(std::move(dims));
    rest.remove_prefix(part.size() + 1);
  }
}

int RankGrid::size() const {
  return std::accumulate(dims_.begin(), dims_.end(), 1, [](int n, const Dim& dim) { return n * dim.size; });
}

int RankGrid::first(int rank) const {
  for (const Dim& dim : dims_) rank -= rank / dim.stride % dim.size * dim.stride;
  return rank;
}

std::vector<int> RankGrid::members(int rank) const {
  std::vector<int> members{first(rank)};
  for (const Dim& dim : dims_) {
    const std::vector<int> firsts = std::exchange(members, {});
    for (const int r : firsts)
      for (int i = 0; i < dim.size; ++i) members.push_back(r + i * dim.stride);
  }
  std::ranges::sort(members);
  return members;
}

void RankGrid::check_divides(int ranks) const {
  if (dims_.empty()) return;
  const int covered = dims_[0].size * dims_[0].stride;
  check(ranks % covered == 0, "groups of the grid {} do not divide {} ranks", text(), ranks);
}

std::string HostLayout::text() const {
  return fmt::format("{} host{} x {} rank{}", hosts, hosts == 1 ? "" : "s", per_host, per_host == 1 ? "" : "s");
}

HostLayout host_layout(int ranks, std::optional<int> hosts, std::optional<int> per_host) {
  check(ranks >= 1, "--ranks is {}; give 1 or more", ranks);
  check(!hosts || *hosts >= 1, "--hosts is {}; give 1 or more", hosts.value_or(0));
  check(!per_host || *per_host >= 1, "--per-host is {}; give 1 or more", per_host.value_or(0));
  const int h = hosts.value_or(per_host ? ranks / *per_host : 1);
  const int p = per_host.value_or(h > 0 ? ranks / h : 0);
  if (hosts && per_host)
    check(std::int64_t{h} * p == ranks, "--hosts {} x --per-host {} are {} ranks, and there are {}", h, p,
          std::int64_t{h} * p, ranks);
  check(std::int64_t{h} * p == ranks, "{} {} does not divide {} ranks", hosts ? "--hosts" : "--per-host",
        hosts ? h : per_host.value_or(0), ranks);
  return {.hosts = h, .per_host = p};
}

GroupSpan span_of(const RankGrid& grid, const HostLayout& hosts, int rank) {
  const auto hosts_of = [&](int first) {
    std::vector<int> all;
    for (const int r : grid.members(first)) all.push_back(hosts.host_of(r));
    std::ranges::sort(all);
    return all;
  };
  const std::vector<int> own = hosts_of(grid.first(rank));
  GroupSpan span{.hosts = 0, .per_host = 0};
  for (std::size_t i = 0, run = 0; i < own.size(); ++i) {
    const bool is_new = i == 0 || own[i] != own[i - 1];
    run = is_new ? 1 : run + 1;
    span.hosts += is_new;
    span.per_host = std::max(span.per_host, static_cast<int>(run));
  }
  if (span.hosts == 1) return span;
  // Groups of one host leave it alike where they are of one grid: its own host stands for the others.
  std::set<int> leaving;
  const int host = hosts.host_of(rank);
  for (int i = 0; i < hosts.per_host; ++i) {
    const int r = hosts.order == HostLayout::Order::by_host ? host * hosts.per_host + i : host + i * hosts.hosts;
    if (const int first = grid.first(r); !leaving.contains(first))
      if (const std::vector<int> all = hosts_of(first); all.front() != all.back()) leaving.insert(first);
  }
  span.sharing = std::max<int>(1, static_cast<int>(leaving.size()));
  return span;
}

FabricNames parse_fabric_names(std::string_view text) {
  FabricNames names;
  for (std::string_view rest = text; !rest.empty();) {
    const std::string_view part = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(part.size() + 1, rest.size()));
    const std::size_t equals = std::min(part.find('='), part.size());
    const std::string_view key = part.substr(0, equals), value = part.substr(std::min(equals + 1, part.size()));
    std::string* const name = key == "in" ? &names.in : key == "out" ? &names.out : nullptr;
    check(name && name->empty() && !value.empty(),
          "--fabric is \"{}\"; give in=NAME between ranks of a host and out=NAME between hosts, as "
          "in=nvlink4,out=ib400x1",
          text);
    *name = value;
  }
  check(!names.in.empty(), "--fabric is \"{}\"; it names no link between ranks of a host: in=NAME", text);
  return names;
}

}  // namespace sherd
