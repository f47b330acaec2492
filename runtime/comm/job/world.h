#pragma once
// The group of all ranks of the job.
#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "runtime/comm/group/process_group.h"

namespace sherd {

/// "sherd: " and the text, on a line of its own on stderr.
void say_on_stderr(const std::string& text);

struct WorldOptions {
  /// Limit on the time until all ranks have come, and the deadline of the group.
  std::chrono::nanoseconds deadline = std::chrono::seconds(300);
  /// The same for ranks that give no sign of life, where this is shorter (ShmGroupOptions::silence).
  std::chrono::nanoseconds silence = std::chrono::seconds(60);
  /// Called, on a thread that waits, with who is missing, in which call and since when; empty: waits are silent.
  std::function<void(const std::string& text)> say = say_on_stderr;
  /// The first so many ranks of the job are the group; 0: all. The others make none.
  int ranks = 0;
};

/// This rank's handle on the whole job. Ranks that are threads get it from whoever started them; a process finds its
/// launcher (rank.h), meets its peers at the store and makes a shm_group on first use; where the launcher has started
/// ranks on several hosts, a store_group, which is for agreements. One rank without a launcher. Blocks until all come,
/// at most the deadline, or `silence` for those that have not shown up at all. The options count for the call that
/// makes the group.
std::shared_ptr<ProcessGroup> world_group(const WorldOptions& options = {});

/// The same if it is known already; null: not yet.
const std::shared_ptr<ProcessGroup>& known_world();

/// Sets it for the current rank context: rank threads, ghosts, tests. Error if a ghost's world is a real group or the
/// reverse (check_fits_rank).
void set_world_group(std::shared_ptr<ProcessGroup> group);

}  // namespace sherd
