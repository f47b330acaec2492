// Calls of a pass are those that every way makes: products, norms, sums, and copies that a model asks for. Casts and
// copies of parameters and gradients are of units. A step takes at least
//
//   first forward      until its first call, then the calls with their waits for tp; or the gathers that it waits for
//   what is between    the other passes
//   last backward      the calls with their waits, then what follows the last one; or all that is sent from there on
//
// and no less than all that its thread computes, nor than all that a link carries, which has one collective at a time.
// A search looks at these bounds for each way that it tries in full.
#include "tools/plan/bounds.h"

#include <algorithm>
#include <array>

#include "runtime/tensor/indices.h"

namespace sherd::plan {

namespace {

constexpr std::int64_t kFewLayers = 8;  // up to here a ghost has all of them
constexpr double kSlack = 0.995;        // of curves that are not straight

bool is_of_pass(const Timeline& step, const Timeline::Entry& entry) {
  constexpr std::array<std::string_view, 3> kOfUnits{"copy", "cast", "to_device"};
  if (entry.kind != Timeline::Kind::call || entry.phase == StepPhase::optimizer) return false;
  const Timeline::Call& call = step.calls[entry.index];
  return call.work.kind != WorkKind::issue && call.work.kind != WorkKind::optimizer &&
         std::ranges::find(kOfUnits, step.text(call.op)) == kOfUnits.end();
}

bool is_of_tp(const Timeline& step, const Timeline::Entry& entry) {
  if (entry.kind != Timeline::Kind::item || entry.phase == StepPhase::optimizer) return false;
  const Timeline::Item& item = step.items[entry.index];
  return item.group != Timeline::kNone && step.text(step.groups[item.group].label) == "tp";
}

/// The entries `first` .. `last` that are kept, without waits for what is not.
template <class Keeps>
Timeline part_of(const Timeline& step, std::size_t first, std::size_t last, const Keeps& keeps) {
  Timeline part = step;
  part.entries.clear();
  std::vector<bool> has_item(step.items.size(), false);
  for (std::size_t i = first; i < last; ++i) {
    const Timeline::Entry& entry = step.entries[i];
    const bool is_kept = entry.kind == Timeline::Kind::wait ? has_item[step.waits[entry.index].item]
                                                            : entry.kind != Timeline::Kind::memory && keeps(entry);
    if (!is_kept) continue;
    part.entries.push_back(entry);
    if (entry.kind == Timeline::Kind::item) has_item[entry.index] = true;
  }
  for (Timeline::Item& item : part.items) std::erase_if(item.after, [&](std::uint32_t i) { return !has_item[i]; });
  return part;
}

/// Until the thread is through; queues may go on.
double thread_seconds(const Simulation& simulated) {
  const Simulation::RankTimes& rank = simulated.of(0);
  return rank.compute + rank.transfer + rank.skew + rank.throttle;
}

/// Seconds of collectives of a timeline by fabric, of those on axes that are meant.
template <class IsMeant>
LinkSeconds links_of(const Timeline& step, const Cluster& cluster, const IsMeant& is_meant) {
  LinkSeconds links;
  for (const Simulation::Part& axis : simulate(step, cluster).axes)
    if (axis.fabric != "copy" && is_meant(axis.name)) links[axis.fabric] += axis.seconds;
  return links;
}

bool is_any(const std::string&) { return true; }
bool is_not_tp(const std::string& axis) { return axis != "tp"; }

/// Where a step goes over from one pass to another. What follows a backward, as the mean of losses, is none.
struct PassPlaces {
  std::size_t first = 0, last = 0;                                  ///< the first call; after the last one of backward
  std::size_t forward_is_first_over = 0, forward_is_last_over = 0;  ///< after a last product of forward
};
PassPlaces places_of(const Timeline& step) {
  PassPlaces places{.first = step.entries.size()};
  for (const std::size_t i : indices(step.entries)) {
    const Timeline::Entry& entry = step.entries[i];
    if (!is_of_pass(step, entry)) continue;
    places.first = std::min(places.first, i);
    if (entry.phase == StepPhase::backward) places.last = i + 1;
    const WorkKind kind = step.calls[entry.index].work.kind;
    if (entry.phase == StepPhase::backward || (kind != WorkKind::contraction && kind != WorkKind::attention)) continue;
    places.forward_is_last_over = i + 1;
    if (places.last == 0) places.forward_is_first_over = i + 1;
  }
  return places;
}

double bytes_of(const CategoryBytes& bytes, MemoryCategory category) {
  return static_cast<double>(bytes[static_cast<std::size_t>(category)]);
}

PassBound pass_of(const Option& option, const Cluster& cluster) {
  PassBound bound{.left_out = option.left_out};
  if (!option.has_forecast()) return bound;
  const Timeline& step = option.forecast.step;
  const std::size_t middle = places_of(step).forward_is_last_over, end = step.entries.size();
  const auto is_kept = [&](const Timeline::Entry& entry) { return is_of_pass(step, entry) || is_of_tp(step, entry); };
  const Timeline both = part_of(step, 0, end, is_kept);
  bound.forward = thread_seconds(simulate(part_of(step, 0, middle, is_kept), cluster));
  bound.backward = thread_seconds(simulate(part_of(step, middle, end, is_kept), cluster));
  bound.compute = simulate(both, cluster).of(0).compute;
  bound.links = links_of(both, cluster, is_any);
  bound.activations = bytes_of(option.forecast.memory.peak, MemoryCategory::activations);
  return bound;
}

RestBound rest_of(const Option& option, const Cluster& cluster) {
  RestBound bound{.left_out = option.left_out};
  if (!option.has_forecast()) return bound;
  const Timeline& step = option.forecast.step;
  const PassPlaces places = places_of(step);
  const std::size_t end = step.entries.size();
  const auto is_item = [](const Timeline::Entry& entry) { return entry.kind == Timeline::Kind::item; };
  const auto is_no_pass = [&](const Timeline::Entry& entry) { return !is_of_pass(step, entry); };
  const auto is_rest = [&](const Timeline::Entry& entry) {
    return entry.kind == Timeline::Kind::call && !is_of_pass(step, entry);
  };
  if (places.first < places.last) {
    bound.before = thread_seconds(simulate(part_of(step, 0, places.first, is_no_pass), cluster));
    bound.after = thread_seconds(simulate(part_of(step, places.last, end, is_no_pass), cluster));
  }
  bound.compute = thread_seconds(simulate(part_of(step, 0, end, is_rest), cluster));
  std::vector<bool> is_waited(step.items.size(), false);
  for (std::size_t i = 0; i < places.forward_is_first_over; ++i)
    if (step.entries[i].kind == Timeline::Kind::wait) is_waited[step.waits[step.entries[i].index].item] = true;
  const auto is_waited_for = [&](const Timeline::Entry& entry) { return is_item(entry) && is_waited[entry.index]; };
  bound.links = links_of(part_of(step, 0, end, is_item), cluster, is_not_tp);
  bound.first_links = links_of(part_of(step, 0, places.forward_is_first_over, is_waited_for), cluster, is_not_tp);
  bound.last_links = links_of(part_of(step, places.forward_is_last_over, end, is_item), cluster, is_not_tp);
  for (const MemoryCategory category : {MemoryCategory::parameters, MemoryCategory::optimizer})
    bound.state += bytes_of(option.forecast.memory.held, category);
  return bound;
}

/// `b` and `more` times what it has more than `a`.
double extended(double a, double b, double more) { return b + more * (b - a); }
LinkSeconds extended(const LinkSeconds& a, LinkSeconds b, double more) {
  for (auto& [fabric, seconds] : b) {
    const auto before = a.find(fabric);
    seconds = extended(before == a.end() ? 0 : before->second, seconds, more);
  }
  return b;
}
template <class Bound>
void extend(const Bound&, Bound&, double) {}
template <class Bound, class Member, class... Others>
void extend(const Bound& a, Bound& b, double more, Member member, Others... others) {
  b.*member = extended(a.*member, b.*member, more);
  extend(a, b, more, others...);
}

/// The bound of a config, by ghosts of two and three of its layers where it has many.
template <class Bound, class... Members>
Bound by_few_layers(const TrainConfig& config, const PlannedFor& planned, Bound (*of)(const Option&, const Cluster&),
                    Members... members) {
  const auto with_layers = [&](std::int64_t layers) {
    TrainConfig few = config;
    few.model.layers = layers;
    return of(option_of(few, planned), *planned.cluster);
  };
  const std::int64_t layers = config.model.layers;
  if (layers <= kFewLayers) return with_layers(layers);
  const Bound two = with_layers(2);
  if (!two.left_out.empty()) return two;
  Bound bound = with_layers(3);
  extend(two, bound, static_cast<double>(layers - 3), members...);
  return bound;
}

double most(const LinkSeconds& links) {
  double most = 0;
  for (const auto& [fabric, seconds] : links) most = std::max(most, seconds);
  return most;
}

}  // namespace

PassBound pass_bound(const SearchSpace& space, const Way& way, const PlannedFor& planned) {
  Way one = way;
  one.micro_batches = 1;
  one.accumulate_shards = false;
  return by_few_layers(space.config(one, space.sequences(way)), planned, pass_of, &PassBound::forward,
                       &PassBound::backward, &PassBound::compute, &PassBound::links, &PassBound::activations);
}

RestBound rest_bound(const SearchSpace& space, const Way& way, const PlannedFor& planned) {
  return by_few_layers(space.config(way, space.fewest_sequences(way)), planned, rest_of, &RestBound::compute,
                       &RestBound::before, &RestBound::after, &RestBound::links, &RestBound::first_links,
                       &RestBound::last_links, &RestBound::state);
}

double least_seconds(const PassBound& pass, std::int64_t micro_batches) {
  return kSlack * static_cast<double>(micro_batches) * std::max(pass.forward + pass.backward, most(pass.links));
}

double least_seconds(const PassBound& pass, const RestBound& one, const RestBound& two, std::int64_t micro_batches) {
  const auto times = static_cast<double>(micro_batches);
  const double more = std::max(0.0, times - 2), between = (times - 1) * (pass.forward + pass.backward);
  double least = std::max(one.before + pass.forward, most(two.first_links)) + between +
                 std::max(pass.backward + two.after, most(two.last_links));
  least = std::max(least, times * pass.compute + two.compute + more * std::max(0.0, two.compute - one.compute));
  LinkSeconds links = extended(one.links, two.links, more);
  for (const auto& [fabric, seconds] : pass.links) links[fabric] += times * seconds;
  return kSlack * std::max(least, most(links));
}

}  // namespace sherd::plan
