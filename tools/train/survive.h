#pragma once
// A run that goes on when replicas die, and takes them back (`sherd run --survive`, docs/faults.md). What ranks do:
//
//   train in a group --a peer is lost--> agree how many updates are made, carry state and record --> train in the next
//        |           --one has come back--^                                                            |
//        '---------------------------------------------------------------------------------------------'
//
// Each group has a rank context and a Trainer of its own, so nothing of an old one is left but what is carried.
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/comm/group/process_group.h"
#include "tools/train/config.h"
#include "tools/train/generations.h"
#include "tools/train/run.h"
#include "tools/train/trainer.h"

namespace sherd::train {

/// The ranks of a job by replicas: those that differ along replicate only are replicas of each other.
class ReplicaLayout {
 public:
  /// Layout of a resolved config on `ranks` ranks. ExitError of kUsage, which says what to change, if such a run cannot
  /// outlive a replica: it has but one, or keeps state that has no second copy; what it trains on or records does not
  /// go on in another group.
  ReplicaLayout(const TrainConfig& config, int ranks);
  int num_replicas() const { return num_replicas_; }
  int num_data_ranks() const { return num_data_ranks_; }
  int replica_of(int rank) const { return places_[static_cast<std::size_t>(rank)].replica; }
  int data_rank_of(int rank) const { return places_[static_cast<std::size_t>(rank)].data_rank; }
  /// "0,1;2,3": the ranks of each replica.
  std::string text() const;
  /// Replicas that `ranks` make up. Error unless they are whole replicas.
  std::vector<int> replicas_of(const std::vector<int>& ranks) const;
  /// The same mesh of `replicas` replicas.
  nn::MeshAxes mesh_of(int replicas) const;

 private:
  struct Place {
    int replica, data_rank;
  };
  std::vector<DeviceMesh::Axis> axes_;
  int num_replicas_ = 1, num_data_ranks_ = 1;
  std::vector<Place> places_;  // by rank
};

/// Makes the group of a generation: `rank` is this one's there, `gives_up` as ShmGroupOptions::gives_up.
struct GroupOrder {
  const Generation& generation;
  int rank;
  std::function<std::string()> gives_up;
};

struct SurvivorOptions {
  TrainConfig config{};     ///< resolved
  int rank = 0, ranks = 1;  ///< in the first group
  int life = 1;             ///< of this rank: 1 with all others, more if it was started again
  int last_generation = 0;  ///< when this process was started
  Store* store = nullptr;
  WaitNotice notice{};                        ///< of waits for the launcher, and for what other ranks say there
  std::chrono::milliseconds look_every{100};  ///< how often rank 0 asks the store, between steps, for the next group
  std::function<std::shared_ptr<ProcessGroup>(const GroupOrder& order)> form{};
};

/// One per process (or thread) and rank, outside of any rank scope.
class Survivor {
 public:
  /// Throws as ReplicaLayout.
  explicit Survivor(SurvivorOptions options);

  struct Work {
    /// On each new group, before its Trainer is made.
    std::function<void(ProcessGroup& group)> prepare;
    /// With each Trainer: runs it and returns the exit status. When it throws CommError, or Regroup::is_ended(),
    /// it is called again with that of the next group.
    std::function<int(Trainer& trainer)> train;
  };
  /// Until the work is done, or no replica is left that has the state. Throws what `work` throws, but for CommErrors
  /// that another group can mend.
  int run(const Work& work);

 private:
  std::optional<int> train_in_group(const Work& work);
  std::shared_ptr<ProcessGroup> form();
  TrainConfig config_of_group() const;
  TrainGroup place_in_group();
  bool has_newer_group();
  void announce(const Run& run);
  void agree_in_step(const Run& run, const CommError& error);
  void carry(Run& run);
  void come_back();

  const SurvivorOptions options_;
  const ReplicaLayout layout_;
  Generations generations_;
  Agreement now_;                  // the present group
  std::optional<Agreement> next_;  // agreed on within a step
  bool has_state_ = false, is_announced_ = false, is_launcher_lost_ = false;
  std::int64_t updates_ = 0;
  ckpt::CarriedState state_;
  RunRecord record_;
  RunData data_;
  std::chrono::steady_clock::time_point still_since_;  // no step is made
  std::chrono::steady_clock::time_point looked_at_;    // for the next generation
};

}  // namespace sherd::train
