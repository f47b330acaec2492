#include "tools/train/survive.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <set>
#include <utility>

#include <fmt/ranges.h>

#include "nn/optim/update_agreement.h"
#include "runtime/comm/group/host_group.h"
#include "runtime/comm/job/world.h"
#include "runtime/exec/context.h"
#include "runtime/tensor/indices.h"
#include "tools/train/exit_status.h"

namespace sherd::train {

namespace {

using Clock = std::chrono::steady_clock;

void check_run_survives(const TrainConfig& config, int ranks) {
  const auto check_that = [](bool holds, std::string_view text) { check_usage(holds, "run --survive: {}", text); };
  check_that(config.group.kind() != GroupChoice::Kind::thread,
             "ranks that are threads of one process end together; leave out --group thread");
  try {
    nn::check_survives(config.plan, ranks);
  } catch (const Error& error) { check_that(false, error.message()); }
  check_that(config.on_nonfinite != "rollback",
             "on_nonfinite = rollback goes back to a save, which ranks may be lost in; take stop or skip");
  check_that(config.trace.empty(), "a trace is of one group of ranks; leave out --trace");
}

}  // namespace

ReplicaLayout::ReplicaLayout(const TrainConfig& config, int ranks)
    : axes_(as_usage([&] { return config.plan.mesh.of(ranks); })) {
  num_replicas_ = std::max(nn::MeshAxes(axes_).size("replicate"), 1);
  check_run_survives(config, ranks);
  num_data_ranks_ = nn::count_data_ranks(axes_);
  for (const int rank : up_to(ranks)) {
    Place place{0, 0};
    int stride = ranks;
    for (const DeviceMesh::Axis& axis : axes_) {  // slowest first
      stride /= axis.size;
      const int coordinate = rank / stride % axis.size;
      if (axis.name == "replicate") place.replica = coordinate;
      if (axis.name != "tp") place.data_rank = place.data_rank * axis.size + coordinate;
    }
    places_.push_back(place);
  }
}

std::string ReplicaLayout::text() const {
  std::vector<std::string> replicas;
  for (const int replica : up_to(num_replicas_)) {
    std::vector<int> ranks;
    for (const std::size_t rank : indices(places_))
      if (places_[rank].replica == replica) ranks.push_back(static_cast<int>(rank));
    replicas.push_back(ranks_to_text(ranks));
  }
  return fmt::format("{}", fmt::join(replicas, ";"));
}

std::vector<int> ReplicaLayout::replicas_of(const std::vector<int>& ranks) const {
  std::set<int> found;
  for (const int rank : ranks) {
    check(rank >= 0 && std::cmp_less(rank, places_.size()), "the launcher names rank {} of {}", rank, places_.size());
    found.insert(replica_of(rank));
  }
  check(ranks.size() * static_cast<std::size_t>(num_replicas_) == places_.size() * found.size(),
        "the launcher names ranks {}, which are no whole replicas", ranks_to_text(ranks));
  return {found.begin(), found.end()};
}

nn::MeshAxes ReplicaLayout::mesh_of(int replicas) const {
  std::vector<DeviceMesh::Axis> axes = axes_;
  for (DeviceMesh::Axis& axis : axes)
    if (axis.name == "replicate") axis.size = replicas;
  return nn::MeshAxes(std::move(axes));
}

Survivor::Survivor(SurvivorOptions options)
    : options_(std::move(options)),
      layout_(options_.config, options_.ranks),
      generations_(
          *options_.store, options_.rank, options_.last_generation,
          std::chrono::ceil<std::chrono::milliseconds>(std::chrono::duration<double>(options_.config.deadline)),
          options_.notice),
      still_since_(Clock::now()),
      looked_at_(still_since_) {
  for (const int rank : up_to(options_.ranks)) now_.generation.ranks.push_back(rank);
  now_.has_state.assign(now_.generation.ranks.size(), false);
}

// What takes time, and needs no others, before they form a group with this rank.
void Survivor::come_back() {
  const std::chrono::milliseconds deadline(static_cast<std::int64_t>(options_.config.deadline * 1000));
  const std::string vocabulary = options_.store->get(survival_key::kVocabulary, deadline);
  RunData data(TokenData::open(options_.config.data, Vocabulary::from_text(vocabulary)));
  data->check_sequence(options_.config.model.sequence);
  data.read_content();
  data_ = std::move(data);
  options_.store->set(survival_key::ready(options_.life, options_.rank), "1");
  now_ = generations_.agree({.has_state = false});
  still_since_ = Clock::now();
  is_announced_ = true;
}

int Survivor::run(const Work& work) {
  if (options_.life > 1) come_back();
  for (;;) {
    if (now_.generation.is_over) {
      if (updates_ < options_.config.steps)
        throw CommError(fmt::format("other ranks have ended the run, rank {} has made {} of {} steps", options_.rank,
                                    updates_, options_.config.steps));
      return kDone;
    }
    std::optional<int> status;
    {
      const RankScope scope;
      status = train_in_group(work);
    }
    if (status) return *status;
    if (next_) now_ = *std::exchange(next_, std::nullopt);
    else now_ = generations_.agree({.has_state = has_state_, .updates = updates_});
    check(!has_state_ || now_.generation.is_over || now_.updates == updates_,
          "the ranks that are left have made {} updates, this one {}", now_.updates, updates_);
  }
}

std::shared_ptr<ProcessGroup> Survivor::form() {
  const std::vector<int>& ranks = now_.generation.ranks;
  const auto place = std::ranges::find(ranks, options_.rank) - ranks.begin();
  return options_.form({now_.generation, static_cast<int>(place), [this] { return generations_.why_to_give_up(); }});
}

// Nothing if another group goes on.
std::optional<int> Survivor::train_in_group(const Work& work) {
  try {
    const std::shared_ptr<ProcessGroup> group = form();
    set_world_group(group);
    work.prepare(*group);
    Trainer trainer(open_run(config_of_group(), group, Regroup(place_in_group())));
    Run& run = trainer.opened();
    if (!is_announced_) announce(run);
    has_state_ = true;
    state_ = {};
    nn::when_ranks_are_lost() = [&](const CommError& error) { agree_in_step(run, error); };
    try {
      const int status = work.train(trainer);
      if (!run.regroup.is_ended()) return status;
      still_since_ = Clock::now();
    } catch (const CommError& error) {
      still_since_ = run.regroup.left_step_began().value_or(Clock::now());
      group->abort(error.message());
    }
    carry(run);
  } catch (const CommError&) {  // in a group that has not trained: what was carried stays
    if (!is_announced_) throw;
  } catch (const std::exception& error) {
    if (const auto& world = known_world()) world->abort(error.what());
    throw;
  }
  return std::nullopt;
}

// From here on the launcher knows whom it may lose. All ranks have the state.
void Survivor::announce(const Run& run) {
  data_ = run.data;
  if (options_.rank == 0) options_.store->set(survival_key::kVocabulary, data_->vocabulary().to_text());
  run.group->host().barrier();
  if (options_.rank == 0) {
    options_.store->set(survival_key::kPatience, fmt::format("{}", std::llround(1000 * options_.config.frozen_after)));
    options_.store->set(survival_key::kDeadline, fmt::format("{}", std::llround(1000 * options_.config.deadline)));
    options_.store->set(survival_key::kReplicas, layout_.text());
  }
  is_announced_ = true;
}

// The barrier before an update has failed. Returns if all that are left make it.
void Survivor::agree_in_step(const Run& run, const CommError& error) {
  next_ = generations_.agree({.updates = run.state.updates, .can_update = true});
  if (next_->generation.is_over || next_->updates == run.state.updates) throw error;
}

void Survivor::carry(Run& run) {
  updates_ = run.state.updates;
  record_ = run.record();
  state_ = run.carry();
}

TrainConfig Survivor::config_of_group() const {
  TrainConfig config = options_.config;
  if (now_.generation.number == 0) return config;
  config.plan.mesh = layout_.mesh_of(static_cast<int>(layout_.replicas_of(now_.generation.ranks).size()));
  config.resume.clear();  // the state is in memory
  config.init_from.clear();
  return config;
}

// A launcher that does not answer, stopped or gone, names no group; and nobody else's loss can be outlived.
bool Survivor::has_newer_group() {
  try {
    return generations_.has_newer();
  } catch (const CommError& error) {
    if (!std::exchange(is_launcher_lost_, true))
      say_on_stderr(fmt::format("{}; training goes on, and ends if another rank is lost now", error.message()));
    return false;
  }
}

TrainGroup Survivor::place_in_group() {
  return {.data_ranks = layout_.num_data_ranks(),
          .data_rank = layout_.data_rank_of(options_.rank),
          .replicas = layout_.replicas_of(now_.generation.ranks),
          .num_replicas = layout_.num_replicas(),
          .goes_on = now_.generation.number > 0,
          .updates = now_.updates,
          .has_state = now_.has_state,
          .state = &state_,
          .record = record_,
          .seconds_before = std::chrono::duration<double>(Clock::now() - still_since_).count(),
          .data = data_,
          .has_next = [this] {
            if (Clock::now() - looked_at_ < options_.look_every) return false;
            looked_at_ = Clock::now();
            return has_newer_group();
          }};
}

}  // namespace sherd::train
