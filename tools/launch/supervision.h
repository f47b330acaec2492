#pragma once
// One start of the ranks of a job, from their first process to the end of the last one.
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/os/descriptor.h"
#include "tools/launch/line_relay.h"
#include "tools/launch/rank_process.h"
#include "tools/launch/rank_start.h"
#include "tools/launch/restart_policy.h"
#include "tools/launch/stopped_time.h"
#include "tools/launch/supervise.h"
#include "tools/launch/survival.h"

namespace sherd {

/// "sherd run: " and the text, on a line of its own on stderr; blocks.
void say_on_error_stream(const std::string& text);

/// How it ended.
struct StartOutcome {
  int status = 0;
  std::optional<StartFailure> failure;  // one that a new start may mend
  std::string saves;                    // where it has saved, if it said so
};

/// Throws as supervise().
class Supervision {
 public:
  Supervision(const SuperviseOptions& options, const JobStart& start, const sigset_t& rank_mask, int control);
  ~Supervision();

  /// Starts all ranks and returns when they, and all that they started, have ended.
  StartOutcome run();

 private:
  using Clock = std::chrono::steady_clock;
  void wait_for_events();
  void read_control();
  void reap();
  bool looks_for_frozen() const;
  void kill_frozen();
  void advance();
  void stop(int signal, std::chrono::milliseconds grace);
  void kill_all();
  bool is_outlived(RankProcess& rank);
  void give_up(int rank);
  void look_after_replicas();
  void start_again(const std::vector<int>& ranks);
  void end_what_waits();
  int report();
  std::optional<StartFailure> failure() const;
  bool all_ranks_ended() const {
    return std::all_of(ranks_.begin(), ranks_.end(), [](const auto& rank) { return rank->status.has_value(); });
  }

  const SuperviseOptions& options_;
  const RankStart start_;
  const int control_;
  bool launcher_lives_ = true;
  Descriptor child_signals_;
  OutputRelay relay_;
  std::vector<std::unique_ptr<RankProcess>> ranks_;
  bool has_children_ = false;
  std::vector<const RankProcess*> failures_;  // before anything was stopped, in the order of their ends
  Clock::time_point stop_at_ = Clock::time_point::max();
  Clock::time_point kill_at_ = Clock::time_point::max();
  std::optional<Clock::time_point> killed_at_;
  bool stopping_ = false;
  StoppedTime stopped_{options_.frozen_after};
  std::unique_ptr<Survival> survival_;  // with SuperviseOptions::survive
  bool has_one_ended_well_ = false;     // of the ranks that take part
  int user_signal_ = 0;                 // what made us stop, if it was the user
  int interrupted_by_ = 0;              // the user's first signal, perhaps when we had stopped already
};

}  // namespace sherd
