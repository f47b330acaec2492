#pragma once
// `sherd run --survive`: which replicas of a job live, which are started again and when, and what their ranks are told
// of it (tools/train/generations.h). A replica is what the job says it is; it lives and dies as a whole.
//
//   member --a rank dies--> down --its other ranks are killed, a pause--> starting --all ranks are ready--> member
//                            ^-----------------a rank dies------------------'
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/comm/store/store.h"
#include "tools/launch/restart_policy.h"

namespace sherd {

class Survival {
 public:
  using Clock = std::chrono::steady_clock;

  /// Watches a job of `ranks` ranks, which have just been started. A replica is started again after `backoff`; twice as
  /// long after each time that it has lived for less than kAtOnce, up to a minute.
  Survival(std::unique_ptr<Store> store, int ranks, std::chrono::milliseconds backoff);

  /// Whether the job has said which ranks are a replica: before, and of programs that do not say it, none is outlived.
  bool is_known();
  struct Loss {
    int replica = 0;
    std::vector<int> ranks;  ///< of the replica, those that live included
    std::string text;        ///< "replica 0 (ranks 0, 1) is lost, 1 of 2 goes on"
  };
  enum class Fate {
    goes_on,  ///< others are told; the replica's ranks are to be killed
    is_down,  ///< its replica was given up before
    ends,     ///< no other replica is left, or none is known
  };
  /// A rank has died. Others are told by tell(), when what is left of its replica was killed.
  Fate lose(int rank, Clock::time_point now, Loss* loss);
  void tell();
  /// The replicas that are to be started now, by their ranks; they count as started. Those whose ranks have all ended.
  std::vector<std::vector<int>> to_start(Clock::time_point now, const std::vector<bool>& has_ended);
  /// Replicas that have become ready are members from now on. Says of them, a line each.
  std::vector<std::string> admit(Clock::time_point now);
  /// Ranks of members that others have waited for too long, in a failure of their group or in forming the next one, and
  /// that are to be killed: after --frozen-after those that are stopped, after --deadline those that live.
  std::vector<int> stragglers(Clock::time_point now, const std::function<bool(int rank)>& is_stopped);
  /// The job ends: ranks that wait for others end as well.
  void end();
  /// Whether a rank is of a replica that takes part.
  bool is_member(int rank) const;
  int generation() const { return generation_; }
  /// How often a rank has been started.
  int life_of(int rank) const;
  /// When to look again; time_point::max() if only a rank's end can change anything.
  Clock::time_point next_look(Clock::time_point now) const;

 private:
  enum class State { member, down, starting };
  struct Replica {
    std::vector<int> ranks;
    State state = State::member;
    int life = 1;
    Clock::time_point since;       // of its start
    Clock::time_point start_at{};  // when it is down
    RestartPolicy::Backoff backoff;
  };
  int replica_of(int rank) const;
  std::vector<int> members() const;
  int num_members() const;
  void publish();
  bool is_ready(const Replica& replica);
  bool has(const std::string& key);
  std::vector<int> late_ranks();

  const std::unique_ptr<Store> store_;
  const int num_ranks_;
  const std::chrono::milliseconds backoff_;
  const Clock::time_point start_;
  std::vector<Replica> replicas_;
  int generation_ = 0;
  bool is_over_ = false, is_to_tell_ = false;
  Clock::time_point looked_at_;                                // for stragglers
  Clock::time_point waited_since_ = Clock::time_point::max();  // for some of them
  bool have_all_voted_ = true;                                 // in this generation
  std::chrono::milliseconds patience_{60'000}, deadline_{300'000};
  int repeats_ = 0;  // of a generation that all its members have found to have failed
};

}  // namespace sherd
