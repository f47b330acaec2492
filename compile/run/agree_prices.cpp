#include "compile/run/agree_prices.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <sstream>

#include <fmt/ranges.h>

#include "compile/ir/analysis/seconds.h"
#include "compile/run/time_collective.h"
#include "runtime/comm/group/agree.h"
#include "runtime/comm/group/group_names.h"
#include "runtime/cpu/parallel.h"
#include "runtime/exec/context.h"
#include "runtime/os/allowed_cpus.h"
#include "runtime/tensor/indices.h"

namespace sherd {

namespace {

using ir::Transfer;

// One movement in one group.
class Way {
 public:
  explicit Way(const Transfer& t) : transfer_(t), group_(group_named(t.group)) {}
  const Transfer& transfer() const { return transfer_; }
  bool is_of(const Transfer& t) const { return t.movement == transfer_.movement && t.group == transfer_.group; }
  void add(const Transfer& t) { transfer_.bytes = std::max(transfer_.bytes, t.bytes); }

  // A transfer holds its tensor and a part of it; where there is no room for a small one the link keeps its default.
  void measure(double seconds, double room, Prices& prices) {
    constexpr double kSmall = 4 << 10, kLarge = 16 << 20;
    const std::vector<double> agreed = largest_of_ranks(group_, std::vector{transfer_.bytes, -room});
    const double fits = -agreed[1] / 2, middle_size = std::min<double>(64 << 10, fits);
    if (middle_size < 2 * kSmall) return;
    const double most = std::clamp(std::min(agreed[0], fits), middle_size, kLarge);
    const CollectiveTime small = taken(kSmall), middle = taken(middle_size);
    const double rate =
        middle_size / std::max(middle.wall, 1e-9);  // of a slow link the large transfer is a smaller one
    const double size = std::max(std::min(most, rate * seconds / kRuns), middle_size);
    const CollectiveTime large = taken(size);
    const std::string name = link_name(transfer_.movement, transfer_.group);
    prices.links.insert_or_assign(name, link_of(small.wall, large.wall, size - kSmall));
    if (queues_share_core())
      prices.links.insert_or_assign("work " + name, link_of(small.own, large.own, size - kSmall));
  }

 private:
  static constexpr int kRuns = 5;

  // The peers' share of a call is in it: the number of ranks is the group's.
  LinkPrice link_of(double small, double large, double more_bytes) const {
    const LinkPrice unit{.call_seconds = 0, .peer_seconds = 0, .bytes_per_second = 1};
    const double more = unit.seconds(transfer_.movement, transfer_.ranks, more_bytes);
    return {.call_seconds = small, .peer_seconds = 0, .bytes_per_second = more / std::max(large - small, 1e-12)};
  }

  CollectiveTime taken(double bytes) { return time_collective(group_, transfer_.movement, bytes, kRuns); }

  Transfer transfer_;
  ProcessGroup& group_;
};

// ---- one table for all ranks ----

/// What a rank says of its nodes, in order, and its table without their prices.
struct Said {
  std::vector<int> kinds{};  ///< equal numbers for equal calls
  std::vector<double> compute{}, queued{};
  Prices rest{};
  double total() const { return std::accumulate(compute.begin(), compute.end(), 0.0); }
};

template <class T>
std::vector<T> take_line(std::istringstream& lines) {
  std::string line;
  std::getline(lines, line);
  std::istringstream words(line);
  std::vector<T> values;
  for (T value{}; words >> value;) values.push_back(value);
  return values;
}

std::vector<Said> said_by_all(const Said& own, ProcessGroup& group) {
  std::vector<Said> all;
  for (const std::string& text :
       gather_text(group, fmt::format("{}\n{}\n{}\n{}", fmt::join(own.kinds, " "), fmt::join(own.compute, " "),
                                      fmt::join(own.queued, " "), own.rest.print()))) {
    std::istringstream lines(text);
    Said& said = all.emplace_back();
    said.kinds = take_line<int>(lines);
    said.compute = take_line<double>(lines);
    said.queued = take_line<double>(lines);
    said.rest = parse_prices(std::string_view(text).substr(static_cast<std::size_t>(lines.tellg())));
  }
  return all;
}

// By node, the first of those that cost the same: on some rank two of them are equal calls, or each equals a third.
std::vector<std::size_t> classes_of(std::span<const Said> said) {
  std::vector<std::size_t> first(said[0].kinds.size());
  std::iota(first.begin(), first.end(), std::size_t{0});
  const auto find = [&](std::size_t i) {
    while (first[i] != i) i = first[i] = first[first[i]];
    return i;
  };
  for (const Said& rank : said) {
    std::map<int, std::size_t> of_kind;
    for (const std::size_t i : indices(first)) {
      const std::size_t a = find(of_kind.emplace(rank.kinds[i], i).first->second), b = find(i);
      first[std::max(a, b)] = std::min(a, b);
    }
  }
  for (const std::size_t i : indices(first)) first[i] = find(i);
  return first;
}

}  // namespace

bool queues_share_core() {
  const std::size_t cpus = thread_cpus().size();
  const int ranks = cpus < allowed_cpus().cpus.size() ? 1 : RankContext::current().num_ranks_here;
  return static_cast<int>(cpus) <= ranks * threads();
}

void check_lengths(const ir::Program& program, ProcessGroup& group) {
  agree(group, Facts{{"the number of nodes", std::to_string(program.nodes.size())}},
        {"prices are of one program, which ranks have differently", "all ranks must measure the same step"});
}

void measure_links(const ir::Program& program, double seconds, std::int64_t most_bytes, Prices& prices) {
  std::vector<Way> ways;
  for (const ir::GraphNode& node : program.nodes) {
    const std::optional<Transfer> t = transfer_of(node);
    if (!t || t->group.empty()) continue;
    const auto known = std::ranges::find_if(ways, [&](const Way& way) { return way.is_of(*t); });
    if (known != ways.end()) known->add(*t);
    else ways.emplace_back(*t);
  }
  const double room = most_bytes > 0 ? static_cast<double>(most_bytes) : 1e18;
  for (Way& way : ways) way.measure(seconds / static_cast<double>(ways.size()), room, prices);
}

Prices agree_prices(const ir::Program& program, const Prices& own, ProcessGroup& group) {
  Said here{.rest = own};
  std::map<std::string, int> kinds;
  std::vector<std::string> keys;
  for (const std::size_t i : indices(program.nodes)) {
    keys.push_back(price_key(program, program.nodes[i]));
    here.kinds.push_back(kinds.emplace(keys.back(), static_cast<int>(kinds.size())).first->second);
    const ir::NodeSeconds node = seconds_of(program, i, own);
    here.compute.push_back(node.compute);
    here.queued.push_back(node.queued);
    here.rest.rows.erase(keys.back());
  }
  const std::vector<Said> all = said_by_all(here, group);
  const Said& slowest = *std::ranges::max_element(all, {}, &Said::total);
  const std::vector<std::size_t> classes = classes_of(all);
  struct Sum {
    double compute = 0, queued = 0, count = 0;
  };
  std::vector<Sum> sums(keys.size());
  for (const std::size_t i : indices(keys)) {
    Sum& sum = sums[classes[i]];
    sum.compute += slowest.compute[i];
    sum.queued += slowest.queued[i];
    ++sum.count;
  }
  Prices agreed = slowest.rest;
  for (const CopyKind kind : {CopyKind::evict, CopyKind::fetch})
    for (const std::string& key : {ir::copy_key(kind), ir::copy_work_key(kind)})
      for (const Said& rank : all)  // the slowest disk need not be the slowest rank's
        if (const auto known = rank.rest.rows.find(key); known != rank.rest.rows.end())
          agreed.rows[key] = std::max(agreed.rows[key], known->second);
  for (const std::size_t i : indices(keys)) {
    const Sum& sum = sums[classes[i]];
    agreed.rows.insert_or_assign(keys[i], sum.compute / sum.count);
    if (sum.queued > 0) agreed.rows.insert_or_assign(ir::queued_key(keys[i]), sum.queued / sum.count);
  }
  return agreed;
}

}  // namespace sherd
