#pragma once
// A timeline as the simulator plays it: stretches of compute, and what queues do, priced for each group of ranks.
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/exec/cluster.h"
#include "runtime/exec/simulate.h"

namespace sherd::simulation {

/// One thing that a rank's thread does.
struct Step {
  enum class Kind : std::uint8_t { compute, submit, wait, peak };
  Kind kind = Kind::compute;
  Timeline::Why why{};
  std::uint32_t item = 0;                         ///< that is submitted, or waited for
  double seconds = 0;                             ///< of compute
  std::uint32_t first_entry = 0, last_entry = 0;  ///< that it stands for, the last one excluded
};

/// An item of a class' ranks.
struct WorkItem {
  std::uint32_t queue = 0;                  ///< of World::queues
  std::uint32_t place = 0;                  ///< in its queue
  std::uint32_t channel = Timeline::kNone;  ///< of World::channels; kNone: of this rank alone
  std::uint32_t call = 0;                   ///< which of its channel
  std::uint32_t unit = 0, axis = 0;         ///< of World::units; of World::axes, where it has no channel
  std::uint32_t entry = 0;
  Movement movement{};
  double bytes = 0, seconds = 0;  ///< seconds: of work of this rank alone
  std::span<const std::uint32_t> after{};
};

/// A class of ranks.
struct Program {
  const Timeline* timeline = nullptr;
  std::vector<Step> steps{};
  std::vector<WorkItem> items{};
  std::vector<std::vector<std::uint32_t>> queues{};  ///< items by queue, in their order
  std::vector<double> call_seconds{};                ///< by call of the timeline
  Simulation::Peak peak{};                           ///< but for its moment in seconds
};

/// A group of ranks and all like it; instances are numbered by their first rank.
struct Group {
  std::string name, label;
  RankGrid grid;
  int size = 1;                                 ///< players of an instance
  std::vector<int> players{};                   ///< by instance
  std::vector<std::uint32_t> instance{};        ///< by player
  std::vector<GroupLink> links{};               ///< by instance
  std::vector<std::uint32_t> fabric{}, axis{};  ///< by instance: of World::fabrics, of World::axes
  std::vector<double> slowness{};               ///< by instance

  std::span<const int> members(std::uint32_t i) const {
    const auto n = static_cast<std::size_t>(size);
    return std::span(players).subspan(i * n, n);
  }
  std::size_t num_instances() const { return links.size(); }
};

/// The calls of a group on one queue: they follow each other, and ranks match them by their order.
struct Channel {
  std::uint32_t group, queue;
  std::uint32_t num_calls = 0;
};

/// Everything that does not depend on time.
struct World {
  const Cluster& cluster;
  const SimulateOptions& options;
  int ranks = 1;
  int players = 1;  ///< ranks that are played: all, or one for all
  std::vector<Program> programs{};
  std::vector<std::uint32_t> program_of{};  ///< by player
  std::vector<std::string> queues{}, fabrics{};
  std::vector<Group> groups{};
  std::vector<Channel> channels{};
  std::vector<Simulation::Part> units{}, axes{};
  bool is_extrapolated = false;
};

/// Checks and prices the classes. The world refers to all of them.
World world_of(std::span<const RankClass> classes, const Cluster& cluster, const SimulateOptions& options);

}  // namespace sherd::simulation
