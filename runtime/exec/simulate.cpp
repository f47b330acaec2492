// Ranks run ahead until they wait for an item whose end is not known. When all do, the collective whose ranks have all
// come first takes its links: nothing that is submitted later can come before it, since ranks that it lets go on do so
// at its end. So links are given in the order of time whatever the order in which ranks are played.
#include "runtime/exec/simulate.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <queue>
#include <tuple>

#include "runtime/exec/simulate_program.h"
#include "runtime/tensor/error.h"
#include "runtime/tensor/indices.h"

namespace sherd {

namespace simulation {

namespace {

constexpr double kUnknown = -1;

// splitmix64 (Steele, Lea and Flood 2014): draws that depend on what they are for, not on an order.
std::uint64_t mixed(std::uint64_t x) {
  x += 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}
double uniform(std::uint64_t bits) { return (static_cast<double>(bits >> 11) + 0.5) * 0x1p-53; }

/// One rank, or the one for all.
struct Player {
  double clock = 0;
  std::uint32_t step = 0;
  std::uint32_t waits_for = Timeline::kNone;  // an item
  bool is_done = false;
  std::size_t first = 0;  // of its items in the tables
};
struct PlayedQueue {
  std::uint32_t head = 0, submitted = 0;  // places in the queue: the first that has not ended, how many there are
  bool head_has_come = false;
  double free_at = 0, busy = 0;
};
/// A collective of one group of ranks, or work of one rank alone.
struct Meeting {
  double met = 0;
  int last = -1;  // player that came last
  int come = 0;
  Movement movement{};
  double bytes = 0;
};
struct ItemTimes {
  double came = 0, met = 0, ended = kUnknown;  // came: until it has, when it was submitted
  int last = -1;
};
struct Event {
  double time;
  std::uint32_t channel, call, instance;  // channel kNone: `instance` is a player and `call` its item
  friend bool operator>(const Event& a, const Event& b) {
    return std::tie(a.time, a.channel, a.call, a.instance) > std::tie(b.time, b.channel, b.call, b.instance);
  }
};

class Play {
 public:
  explicit Play(World& world) : world_(world), num_queues_(world.queues.size()) {
    const auto players = static_cast<std::size_t>(world.players);
    players_.resize(players);
    std::size_t items = 0;
    for (const std::size_t r : indices(players_)) {
      players_[r].first = items;
      items += program(r).items.size();
    }
    items_.resize(items);
    queues_.resize(players * num_queues_);
    links_.assign(players * (world.fabrics.size() + num_queues_), 0);
    result_.ranks.resize(players);
    for (const Channel& c : world.channels)
      meetings_.emplace_back(std::size_t{c.num_calls} * world.groups[c.group].num_instances());
    if (world.options.waits) waits_.resize(players);
    span_of_.assign(players, Timeline::kNone);
    add_spans();
    for (const Program& p : world.programs) result_.peaks.push_back(p.peak);
    is_shown_.assign(world.programs.size(), false);
  }

  Simulation run() {
    for (const std::size_t r : indices(players_)) advance(r);
    while (!events_.empty()) {
      const Event event = events_.top();
      events_.pop();
      if (event.channel == Timeline::kNone) end_own(event);
      else end_meeting(event);
      for (const std::uint32_t r : std::exchange(woken_, {})) advance(r);
    }
    check_all_done();
    return finish();
  }

 private:
  const Program& program(std::size_t r) const { return world_.programs[world_.program_of[r]]; }
  PlayedQueue& queue(std::size_t r, std::size_t q) { return queues_[r * num_queues_ + q]; }
  ItemTimes& times(std::size_t r, std::uint32_t item) { return items_[players_[r].first + item]; }

  void add_spans() {
    for (const int rank : world_.options.spans_of) {
      const std::size_t r = world_.players == 1 ? 0 : static_cast<std::size_t>(rank);
      span_of_[r] = static_cast<std::uint32_t>(result_.spans.size());
      result_.spans.push_back({rank, program(r).timeline, {}});
    }
  }
  void add_span(std::size_t r, double start, double end, std::uint32_t entry) {
    if (span_of_[r] != Timeline::kNone) result_.spans[span_of_[r]].spans.push_back({start, end, entry});
  }

  double factor(std::size_t r, std::uint32_t step) const {
    const SimulateOptions& options = world_.options;
    double factor = options.compute.empty() ? 1 : options.compute[r];
    if (options.jitter > 0) {
      const std::uint64_t draw = mixed(mixed(options.seed * 0x10001 + r) + step);
      const double normal =
          std::sqrt(-2 * std::log(uniform(draw))) * std::cos(2 * std::numbers::pi * uniform(mixed(draw)));
      factor *= std::max(0.0, 1 + options.jitter * normal);
    }
    return factor;
  }

  // Plays a rank's thread until it has to wait for an item whose end is open.
  void advance(std::size_t r) {
    Player& player = players_[r];
    const Program& program = this->program(r);
    for (; player.step < program.steps.size(); ++player.step) {
      const Step& step = program.steps[player.step];
      switch (step.kind) {
        case Step::Kind::compute: compute(r, step); break;
        case Step::Kind::submit: submit(r, step.item); break;
        case Step::Kind::wait:
          if (times(r, step.item).ended == kUnknown) {
            player.waits_for = step.item;
            return;
          }
          stand(r, step);
          break;
        case Step::Kind::peak: {
          const std::uint32_t of = world_.program_of[r];
          if (!is_shown_[of]) result_.peaks[of].seconds = player.clock;
          is_shown_[of] = true;
          break;
        }
      }
    }
    player.is_done = true;
  }

  void compute(std::size_t r, const Step& step) {
    Player& player = players_[r];
    const double f = factor(r, player.step);
    if (span_of_[r] != Timeline::kNone) {
      const Timeline& timeline = *program(r).timeline;
      double at = player.clock;
      for (std::uint32_t e = step.first_entry; e < step.last_entry; ++e) {
        if (timeline.entries[e].kind != Timeline::Kind::call) continue;
        const double end = at + f * program(r).call_seconds[timeline.entries[e].index];
        add_span(r, at, end, e);
        at = end;
      }
    }
    player.clock += f * step.seconds;
    result_.ranks[r].compute += f * step.seconds;
  }

  void submit(std::size_t r, std::uint32_t index) {
    const WorkItem& item = program(r).items[index];
    times(r, index).came = players_[r].clock;
    PlayedQueue& q = queue(r, item.queue);
    ++q.submitted;
    if (item.channel != Timeline::kNone) {
      const Group& group = world_.groups[world_.channels[item.channel].group];
      const double own = group.links[group.instance[r]].core_seconds(item.movement, item.bytes);
      players_[r].clock += own;
      result_.ranks[r].compute += own;
    }
    come(r, item.queue);
  }

  // The head of a queue comes to its collective, if it has been submitted and what it follows has ended.
  void come(std::size_t r, std::size_t at) {
    PlayedQueue& q = queue(r, at);
    if (q.head == q.submitted || q.head_has_come) return;
    const std::uint32_t index = program(r).queues[at][q.head];
    const WorkItem& item = program(r).items[index];
    ItemTimes& own = times(r, index);
    double came = std::max(own.came, q.free_at);
    for (const std::uint32_t before : item.after) {
      const double ended = times(r, before).ended;
      if (ended == kUnknown) return;
      came = std::max(came, ended);
    }
    own.came = came;
    q.head_has_come = true;
    const auto rank = static_cast<std::uint32_t>(r);
    if (item.channel == Timeline::kNone) return events_.push({came, Timeline::kNone, index, rank});
    const Group& group = world_.groups[world_.channels[item.channel].group];
    const std::uint32_t instance = group.instance[r];
    Meeting& meeting = meeting_of(item.channel, item.call, instance);
    if (meeting.come == 0) meeting.movement = item.movement;
    check(meeting.movement == item.movement,
          "ranks do not match: call {} of the group {} on the queue {} is {} on rank {} and {} on another", item.call,
          group.name, world_.queues[item.queue], name(item.movement), r, name(meeting.movement));
    meeting.bytes = std::max(meeting.bytes, item.bytes);
    if (meeting.last < 0 || came > meeting.met) meeting.last = static_cast<int>(r);
    meeting.met = std::max(meeting.met, came);
    if (++meeting.come == group.size) events_.push({meeting.met, item.channel, item.call, instance});
  }

  Meeting& meeting_of(std::uint32_t channel, std::uint32_t call, std::uint32_t instance) {
    const std::size_t instances = world_.groups[world_.channels[channel].group].num_instances();
    return meetings_[channel][call * instances + instance];
  }
  double& link(std::size_t r, std::size_t fabric) { return links_[r * (world_.fabrics.size() + num_queues_) + fabric]; }

  void end_own(const Event& event) {
    const std::size_t r = event.instance;
    const WorkItem& item = program(r).items[event.call];
    double& free_at = link(r, world_.fabrics.size() + item.queue);
    const double start = std::max(event.time, free_at);
    free_at = start + item.seconds;
    Simulation::Part& axis = world_.axes[item.axis];
    axis.wire_bytes += item.bytes;
    end_item(r, event.call, {event.time, start, free_at, static_cast<int>(r)}, axis);
  }

  void end_meeting(const Event& event) {
    const Channel& channel = world_.channels[event.channel];
    const Group& group = world_.groups[channel.group];
    const Meeting meeting = meeting_of(event.channel, event.call, event.instance);
    const GroupLink& over = group.links[event.instance];
    const std::uint32_t fabric = group.fabric[event.instance];
    const std::span<const int> members = group.members(event.instance);
    double start = meeting.met, slowness = group.slowness[event.instance];
    double most = 1;
    for (const int r : members) {
      start = std::max(start, link(static_cast<std::size_t>(r), fabric));
      if (!world_.options.link.empty()) most = std::max(most, world_.options.link[static_cast<std::size_t>(r)]);
    }
    const double end = start + slowness * most * over.seconds(meeting.movement, meeting.bytes);
    if (!world_.is_extrapolated) world_.is_extrapolated = !over.covers(meeting.movement, meeting.bytes);
    Simulation::Part& axis = world_.axes[group.axis[event.instance]];
    for (const int player : members) {
      const auto r = static_cast<std::size_t>(player);
      link(r, fabric) = end;
      const std::uint32_t item = program(r).queues[channel.queue][queue(r, channel.queue).head];
      axis.wire_bytes += wire_bytes(meeting.movement, over.ranks, meeting.bytes);
      world_.units[program(r).items[item].unit].wire_bytes += wire_bytes(meeting.movement, over.ranks, meeting.bytes);
      end_item(r, item, {meeting.met, start, end, meeting.last}, axis);
    }
  }

  struct Ending {
    double met, start, end;
    int last;
  };
  void end_item(std::size_t r, std::uint32_t index, const Ending& at, Simulation::Part& axis) {
    const WorkItem& item = program(r).items[index];
    ItemTimes& own = times(r, index);
    own.met = at.met;
    own.ended = at.end;
    own.last = at.last;
    PlayedQueue& q = queue(r, item.queue);
    q.free_at = at.end;
    q.busy += at.end - at.start;
    ++q.head;
    q.head_has_come = false;
    for (Simulation::Part* part : {&axis, &world_.units[item.unit]}) {
      ++part->calls;
      part->seconds += at.end - at.start;
    }
    add_span(r, at.start, at.end, item.entry);
    for (std::size_t other = 0; other < num_queues_; ++other) come(r, other);
    Player& player = players_[r];
    if (player.waits_for != index) return;
    player.waits_for = Timeline::kNone;
    woken_.push_back(static_cast<std::uint32_t>(r));
  }

  Simulation::Part& axis_of(std::size_t r, const WorkItem& item) {
    if (item.channel == Timeline::kNone) return world_.axes[item.axis];
    const Group& group = world_.groups[world_.channels[item.channel].group];
    return world_.axes[group.axis[group.instance[r]]];
  }

  // The thread stands still until an item has ended, and before it those of its queue: each is waited for until its own
  // end, first for the rank that comes last and then for the transfer.
  void stand(std::size_t r, const Step& step) {
    Player& player = players_[r];
    const double until = times(r, step.item).ended, since = player.clock;
    if (until <= since) return;
    const Program& program = this->program(r);
    const std::vector<std::uint32_t>& order = program.queues[program.items[step.item].queue];
    Simulation::RankTimes& rank = result_.ranks[r];
    for (std::size_t at = program.items[step.item].place;; --at) {
      const WorkItem& work = program.items[order[at]];
      const ItemTimes& item = times(r, order[at]);
      const double before = at == 0 ? 0 : times(r, order[at - 1]).ended;
      const double from = std::max(since, before), to = item.ended;
      const double skew = std::max(0.0, std::min(item.met, to) - std::max(from, item.came));
      const double transfer = std::max(0.0, to - from) - skew;
      rank.skew += skew;
      (step.why == Timeline::Why::throttle ? rank.throttle : rank.transfer) += transfer;
      if (item.last != static_cast<int>(r)) result_.ranks[static_cast<std::size_t>(item.last)].caused += skew;
      note_wait(r, item.last, std::min(skew + transfer, item.met - item.came));
      for (Simulation::Part* part : {&axis_of(r, work), &world_.units[work.unit]}) {
        part->skew += skew;
        (step.why == Timeline::Why::throttle ? part->throttle : part->transfer) += transfer;
      }
      if (before <= since) break;
    }
    add_span(r, since, until, step.first_entry);
    player.clock = until;
  }

  // A rank meets the same few that come last again.
  void note_wait(std::size_t r, int on, double seconds) {
    if (waits_.empty() || seconds <= 0 || on == static_cast<int>(r)) return;
    std::vector<Simulation::Wait>& own = waits_[r];
    const auto known = std::ranges::find(own, on, &Simulation::Wait::on);
    if (known != own.end()) known->seconds += seconds;
    else own.push_back({static_cast<int>(r), on, seconds});
  }

  void check_all_done() const {
    for (const std::size_t r : indices(players_)) {
      if (players_[r].is_done) continue;
      const Timeline& timeline = *program(r).timeline;
      const Timeline::Item& item = timeline.items[players_[r].waits_for];
      fail("ranks do not match: rank {} waits for {} {} on the queue {}, to which not all ranks of its group come", r,
           timeline.text(item.work), timeline.text(item.subject), timeline.text(item.queue));
    }
  }

  Simulation finish() {
    result_.queues = world_.queues;
    for (const std::size_t r : indices(players_)) {
      Simulation::RankTimes& rank = result_.ranks[r];
      rank.seconds = players_[r].clock;
      for (std::size_t q = 0; q < num_queues_; ++q) {
        rank.busy.push_back(queue(r, q).busy);
        rank.seconds = std::max(rank.seconds, queue(r, q).free_at);
        check(queue(r, q).head == queue(r, q).submitted,
              "ranks do not match: rank {} has work on the queue {} to which not all ranks of its group come", r,
              world_.queues[q]);
      }
      if (rank.seconds > result_.seconds) {
        result_.seconds = rank.seconds;
        result_.last_rank = static_cast<int>(r);
      }
    }
    for (auto* parts : {&world_.units, &world_.axes})
      for (Simulation::Part& part : *parts)
        for (double* value : {&part.calls, &part.wire_bytes, &part.seconds, &part.transfer, &part.skew, &part.throttle})
          *value /= world_.players;
    result_.units = std::move(world_.units);
    result_.axes = std::move(world_.axes);
    result_.is_extrapolated = world_.is_extrapolated;
    for (const std::vector<Simulation::Wait>& own : waits_)
      result_.waits.insert(result_.waits.end(), own.begin(), own.end());
    share_spans();
    return std::move(result_);
  }

  // Every rank that was asked for has the spans of the one that is played for all.
  void share_spans() {
    if (world_.players > 1) return;
    for (Simulation::RankSpans& spans : result_.spans)
      if (spans.spans.empty()) spans.spans = result_.spans.back().spans;
  }

  World& world_;
  const std::size_t num_queues_;
  std::vector<Player> players_;
  std::vector<ItemTimes> items_;
  std::vector<PlayedQueue> queues_;             // by player and queue
  std::vector<double> links_;                   // free at, by player, then fabrics, then queues of work of its own
  std::vector<std::vector<Meeting>> meetings_;  // by channel, then call and instance
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  std::vector<std::uint32_t> woken_;
  std::vector<std::vector<Simulation::Wait>> waits_;  // by player
  std::vector<std::uint32_t> span_of_;                // by player: of result_.spans
  std::vector<bool> is_shown_;                        // by program: the moment of its peak
  Simulation result_;
};

}  // namespace

}  // namespace simulation

Simulation simulate(std::span<const RankClass> classes, const Cluster& cluster, const SimulateOptions& options) {
  simulation::World world = simulation::world_of(classes, cluster, options);
  return simulation::Play(world).run();
}

Simulation simulate(const Timeline& timeline, const Cluster& cluster, const SimulateOptions& options) {
  const RankClass all{.timeline = &timeline};
  return simulate({&all, 1}, cluster, options);
}

}  // namespace sherd
