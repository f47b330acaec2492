#include "runtime/exec/simulate_program.h"

#include <algorithm>
#include <cmath>

#include "runtime/tensor/error.h"
#include "runtime/tensor/indices.h"

namespace sherd::simulation {

namespace {

template <class T, class Is, class Make>
std::uint32_t index_of(std::vector<T>& list, const Is& is, const Make& make) {
  const auto found = std::ranges::find_if(list, is);
  const auto index = static_cast<std::uint32_t>(found - list.begin());
  if (found == list.end()) list.push_back(make());
  return index;
}

std::uint32_t name_index(std::vector<std::string>& names, std::string_view name) {
  return index_of(names, [&](const std::string& n) { return n == name; }, [&] { return std::string(name); });
}

std::uint32_t part_index(std::vector<Simulation::Part>& parts, std::string_view name, std::string_view fabric) {
  return index_of(
      parts, [&](const Simulation::Part& p) { return p.name == name && p.fabric == fabric; },
      [&] { return Simulation::Part{.name = std::string(name), .fabric = std::string(fabric)}; });
}

// Which entry of memory makes the peak, and what was held there; none: what was held before.
std::uint32_t find_peak(const Timeline& timeline, Simulation::Peak& peak) {
  CategoryBytes now = timeline.base;
  std::int64_t total = 0;
  for (const std::int64_t bytes : now) total += bytes;
  peak = {.peak = now, .at_peak = now, .bytes = total};
  std::uint32_t at = Timeline::kNone;
  for (const std::size_t i : indices(timeline.entries)) {
    const Timeline::Entry& entry = timeline.entries[i];
    if (entry.kind != Timeline::Kind::memory) continue;
    const Timeline::Change& change = timeline.changes[entry.index];
    const auto c = static_cast<std::size_t>(change.category);
    now[c] += change.bytes;
    total += change.bytes;
    peak.peak[c] = std::max(peak.peak[c], now[c]);
    if (total <= peak.bytes) continue;
    peak.bytes = total;
    peak.at_peak = now;
    at = static_cast<std::uint32_t>(i);
  }
  if (at == Timeline::kNone) return at;
  peak.module = timeline.text(timeline.entries[at].module);
  peak.phase = timeline.entries[at].phase;
  for (std::size_t i = at; i < timeline.entries.size() && peak.op.empty(); ++i)  // a call comes after what it takes
    if (timeline.entries[i].kind == Timeline::Kind::call)
      peak.op = timeline.text(timeline.calls[timeline.entries[i].index].op);
  return at;
}

/// Makes a World.
class Builder {
 public:
  explicit Builder(World& world) : world_(world) {}

  void add_program(const Timeline& timeline) {
    Program& program = world_.programs.emplace_back(Program{.timeline = &timeline});
    price_calls(program);
    add_items(program);
    add_steps(program);
  }
  void fill_groups() {
    for (Group& group : world_.groups) fill(group);
  }
  /// Whether the groups of all ranks have links alike, so that one rank stands for all.
  bool are_groups_alike() const {
    return std::ranges::all_of(world_.groups, [](const Group& group) {
      return std::ranges::all_of(group.links, [&](const GroupLink& link) {
        const GroupLink& first = group.links[0];
        return link.in == first.in && link.out == first.out && link.shaped == first.shaped &&
               link.sharing == first.sharing;
      });
    });
  }
  void play_one() {
    world_.players = 1;
    for (Group& group : world_.groups) {
      group.size = 1;
      group.players = {0};
      group.instance = {0};
      group.links.resize(1);
      group.fabric.resize(1);
      group.axis.resize(1);
      group.slowness.resize(1);
    }
    world_.program_of = {0};
  }

 private:
  void price_calls(Program& program) {
    const Timeline& timeline = *program.timeline;
    const DeviceModel& device = world_.cluster.device;
    program.call_seconds.reserve(timeline.calls.size());
    const auto& measured = world_.cluster.calls;
    for (const Timeline::Call& call : timeline.calls) {
      if (!measured.empty()) {
        const auto own = measured.find(fmt::format("{} {}", timeline.text(call.op), timeline.text(call.shapes)));
        if (own != measured.end()) {
          program.call_seconds.push_back(own->second);
          continue;
        }
      }
      const std::string_view row = timeline.text(call.op);
      const CallWork& work = call.work;
      if (const auto own = world_.cluster.measured.seconds(row, work)) {
        program.call_seconds.push_back((device.call_seconds + *own) * world_.cluster.software);
        if (!world_.is_extrapolated) world_.is_extrapolated = !world_.cluster.measured.covers(row, work);
        continue;
      }
      program.call_seconds.push_back(device.seconds(work) * world_.cluster.software);
      if (!world_.is_extrapolated) world_.is_extrapolated = !device.covers(work);
    }
  }

  void add_items(Program& program) {
    const Timeline& timeline = *program.timeline;
    std::vector<std::uint32_t> groups;
    for (const Timeline::Group& group : timeline.groups) groups.push_back(group_index(timeline, group));
    std::vector<std::uint32_t> calls;  // so far, by channel
    program.items.resize(timeline.items.size());
    for (const std::size_t i : indices(timeline.entries)) {
      const Timeline::Entry& entry = timeline.entries[i];
      if (entry.kind != Timeline::Kind::item) continue;
      const Timeline::Item& row = timeline.items[entry.index];
      WorkItem& item = program.items[entry.index];
      item = {.queue = name_index(world_.queues, timeline.text(row.queue)),
              .entry = static_cast<std::uint32_t>(i),
              .movement = row.movement,
              .bytes = row.bytes,
              .after = row.after};
      const std::string_view subject = timeline.text(row.subject), module = timeline.text(entry.module);
      item.unit = part_index(world_.units, subject.empty() ? module : subject, "");
      if (program.queues.size() <= item.queue) program.queues.resize(item.queue + 1);
      item.place = static_cast<std::uint32_t>(program.queues[item.queue].size());
      program.queues[item.queue].push_back(entry.index);
      if (row.group == Timeline::kNone) {
        item.axis = part_index(world_.axes, timeline.text(row.queue), "copy");
        item.seconds = row.bytes > 0 ? world_.cluster.device.home_seconds(row.bytes) : 0;
        continue;
      }
      const std::uint32_t group = groups[row.group];
      item.channel = index_of(
          world_.channels, [&](const Channel& c) { return c.group == group && c.queue == item.queue; },
          [&] { return Channel{.group = group, .queue = item.queue}; });
      if (calls.size() <= item.channel) calls.resize(item.channel + 1);
      item.call = calls[item.channel]++;
    }
    for (const std::size_t c : indices(calls))
      world_.channels[c].num_calls = std::max(world_.channels[c].num_calls, calls[c]);
  }

  std::uint32_t group_index(const Timeline& timeline, const Timeline::Group& group) {
    const std::string_view name = timeline.text(group.name);
    const std::uint32_t index = index_of(
        world_.groups, [&](const Group& g) { return g.name == name; },
        [&] { return Group{std::string(name), std::string(timeline.text(group.label)), group.grid}; });
    check(world_.groups[index].grid == group.grid, "the group {} is {} on one rank and {} on another", name,
          world_.groups[index].grid.text(), group.grid.text());
    return index;
  }

  void add_steps(Program& program) {
    const Timeline& timeline = *program.timeline;
    const std::uint32_t peak = find_peak(timeline, program.peak);
    const auto number = [](std::size_t i) { return static_cast<std::uint32_t>(i); };
    for (const std::size_t i : indices(timeline.entries)) {
      const Timeline::Entry& entry = timeline.entries[i];
      const Step at{.first_entry = number(i), .last_entry = number(i + 1)};
      std::vector<Step>& steps = program.steps;
      switch (entry.kind) {
        case Timeline::Kind::call:
          if (steps.empty() || steps.back().kind != Step::Kind::compute) steps.push_back(at);
          steps.back().seconds += program.call_seconds[entry.index];
          steps.back().last_entry = at.last_entry;
          break;
        case Timeline::Kind::item:
          steps.push_back(at);
          steps.back().kind = Step::Kind::submit;
          steps.back().item = entry.index;
          break;
        case Timeline::Kind::wait:
          steps.push_back(at);
          steps.back().kind = Step::Kind::wait;
          steps.back().item = timeline.waits[entry.index].item;
          steps.back().why = timeline.waits[entry.index].why;
          break;
        case Timeline::Kind::memory:
          if (i != peak) break;
          steps.push_back(at);
          steps.back().kind = Step::Kind::peak;
          break;
      }
    }
  }

  // Links of groups with one shape are asked once for each place that they can have on their hosts.
  void fill(Group& group) {
    const int ranks = world_.ranks;
    group.grid.check_divides(ranks);
    group.size = group.grid.size();
    const int covered = group.grid.dims().empty() ? 1 : group.grid.dims()[0].size * group.grid.dims()[0].stride;
    const int per_host = world_.cluster.hosts.per_host;
    const bool repeats = covered % per_host == 0 || per_host % covered == 0;  // blocks of ranks lie alike on hosts
    group.instance.assign(static_cast<std::size_t>(ranks), 0);
    for (int rank = 0; rank < ranks; ++rank) {
      if (group.grid.first(rank) != rank) continue;
      const auto index = static_cast<std::uint32_t>(group.links.size());
      for (const int member : group.grid.members(rank)) {
        group.players.push_back(member);
        group.instance[static_cast<std::size_t>(member)] = index;
      }
      const bool is_known = repeats && rank >= covered && world_.cluster.hosts.order == HostLayout::Order::by_host;
      const std::size_t like = group.instance[static_cast<std::size_t>(rank % covered)];
      group.links.push_back(is_known ? group.links[like] : group_link(world_.cluster, group.label, group.grid, rank));
      add_instance(group);
    }
  }
  void add_instance(Group& group) {
    const GroupLink& link = group.links.back();
    const auto index = static_cast<std::uint32_t>(group.links.size() - 1);
    group.fabric.push_back(
        name_index(world_.fabrics, link.shaped ? "link of " + group.name : std::string(link.name())));
    group.axis.push_back(part_index(world_.axes, group.label, link.name()));
    double slowness = 1;
    const std::span<const int> members = group.members(index);
    for (const SimulateOptions::SlowLink& slow : world_.options.slow_links)
      for (const std::size_t i : indices(members)) {
        const int a = members[i], b = members[(i + 1) % members.size()];
        if (a != b && ((a == slow.a && b == slow.b) || (a == slow.b && b == slow.a)))
          slowness = std::max(slowness, 1 / slow.bandwidth);
      }
    group.slowness.push_back(slowness);
  }

  World& world_;
};

void check_factors(const std::vector<double>& factors, std::string_view what, int ranks) {
  check(factors.empty() || factors.size() == static_cast<std::size_t>(ranks), "{} factors of {} for {} ranks",
        factors.size(), what, ranks);
  for (const std::size_t r : indices(factors))
    check(std::isfinite(factors[r]) && factors[r] > 0, "the factor of rank {}'s {} is {}; give more than 0", r, what,
          factors[r]);
}

void check_options(const SimulateOptions& options, int ranks) {
  check_factors(options.compute, "compute", ranks);
  check_factors(options.link, "links", ranks);
  check(std::isfinite(options.jitter) && options.jitter >= 0 && options.jitter <= 10,
        "the jitter is {}; give a standard deviation from 0 to 10", options.jitter);
  for (const SimulateOptions::SlowLink& slow : options.slow_links) {
    for (const int rank : {slow.a, slow.b})
      check(rank >= 0 && rank < ranks, "the slow link {}-{} names rank {} of {}", slow.a, slow.b, rank, ranks);
    check(slow.bandwidth > 0 && std::isfinite(slow.bandwidth),
          "the slow link {}-{} has a factor of {}; give more than 0", slow.a, slow.b, slow.bandwidth);
  }
  for (const int rank : options.spans_of)
    check(rank >= 0 && rank < ranks, "spans are asked of rank {} of {}", rank, ranks);
}

std::vector<std::uint32_t> classes_of_ranks(std::span<const RankClass> classes, int ranks) {
  std::vector<std::uint32_t> of(static_cast<std::size_t>(ranks), Timeline::kNone);
  std::uint32_t rest = Timeline::kNone;
  for (std::uint32_t c = 0; c < classes.size(); ++c) {
    check(classes[c].timeline != nullptr, "class {} of ranks has no timeline", c);
    if (classes[c].ranks.empty()) {
      check(rest == Timeline::kNone, "two classes name no ranks; one at most is of all others");
      rest = c;
    }
    for (const int rank : classes[c].ranks) {
      check(rank >= 0 && rank < ranks, "class {} names rank {} of {}", c, rank, ranks);
      check(of[static_cast<std::size_t>(rank)] == Timeline::kNone, "rank {} is in two classes", rank);
      of[static_cast<std::size_t>(rank)] = c;
    }
  }
  for (const std::size_t r : indices(of)) {
    if (of[r] == Timeline::kNone) of[r] = rest;
    check(of[r] != Timeline::kNone, "rank {} of {} is in no class", r, ranks);
  }
  return of;
}

}  // namespace

World world_of(std::span<const RankClass> classes, const Cluster& cluster, const SimulateOptions& options) {
  World world{.cluster = cluster, .options = options, .ranks = cluster.hosts.ranks()};
  check(world.ranks >= 1 && !classes.empty(), "a simulation needs ranks and what they do: {}, {} classes",
        cluster.hosts.text(), classes.size());
  check(std::isfinite(cluster.software) && cluster.software > 0, "the factor of software is {}; give more than 0",
        cluster.software);
  check_options(options, world.ranks);
  world.players = world.ranks;
  world.program_of = classes_of_ranks(classes, world.ranks);
  Builder builder(world);
  for (const RankClass& c : classes) {
    check(c.timeline->ranks == world.ranks, "a timeline of {} ranks does not play on {}", c.timeline->ranks,
          cluster.hosts.text());
    builder.add_program(*c.timeline);
  }
  builder.fill_groups();
  const bool is_plain = classes.size() == 1 && options.compute.empty() && options.link.empty() &&
                        options.slow_links.empty() && options.jitter == 0;
  if (is_plain && builder.are_groups_alike()) builder.play_one();
  return world;
}

}  // namespace sherd::simulation
