#include "runtime/comm/job/world.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "runtime/comm/board/shm_group.h"
#include "runtime/comm/group/agree.h"
#include "runtime/comm/group/ghost_group.h"
#include "runtime/comm/group/group_names.h"
#include "runtime/comm/group/host_group.h"
#include "runtime/comm/hosts/store_group.h"
#include "runtime/comm/job/hosts.h"
#include "runtime/comm/job/rank.h"
#include "runtime/comm/job/shared_picks.h"
#include "runtime/exec/context.h"
#include "runtime/exec/purpose.h"
#include "runtime/os/instruction_level.h"

namespace sherd {

namespace {

// The store stays as long as the group: rank 0 may host it while peers still read.
struct ConnectedWorld : NoCopy {
  std::unique_ptr<Store> store;
  std::shared_ptr<ProcessGroup> group;
  int awaited = 0;  // of a group over the store that this rank hosts: its size

  ~ConnectedWorld() {
    group.reset();
    await_others();
  }
  void await_others() {
    if (const int ranks = std::exchange(awaited, 0); ranks > 0)
      await_departures(*store, ranks, std::chrono::seconds(10));
  }
};

// The rank context of a plain program, and with it the world, is never destroyed.
void await_others_at_exit(const std::shared_ptr<ConnectedWorld>& world) {
  static std::weak_ptr<ConnectedWorld> hosted;
  hosted = world;
  static const int registered = std::atexit([] {
    if (const auto alive = hosted.lock()) alive->await_others();
  });
  check(registered == 0, "the process takes no more calls for its end");
}

struct KnownWorld {
  std::shared_ptr<ProcessGroup> group;
};

// Kernels of another level round differently, and replicated tensors would drift apart in silence.
void check_same_level(ProcessGroup& group) {
  const PurposeScope purpose("world_group");
  agree(group, Facts{{"the level of the CPU kernels", std::string(instruction_level().name)}},
        {"ranks run different CPU kernels", "set SHERD_CPU_LEVEL to a level that the CPUs of all ranks have"});
}

/// The group of ranks that share no memory, once all have come.
std::shared_ptr<ProcessGroup> meet_over_store(std::shared_ptr<ConnectedWorld> world, const RankInfo& rank,
                                              const WorldOptions& options) {
  const auto deadline = std::chrono::ceil<std::chrono::milliseconds>(options.deadline);
  world->group = make_store_group(rank.rank, rank.world_size,
                                  {.connect = [rank, deadline] { return join_store(rank, deadline); },
                                   .deadline = std::min(options.deadline, options.silence),
                                   .notice = {.say = options.say}});
  if (rank.rank == 0) {
    world->awaited = rank.world_size;
    await_others_at_exit(world);
  }
  try {
    world->group->host().barrier();  // who has not come by then has given no sign of life
  } catch (const Error&) {           // nobody need be awaited for long who has not come
    if (std::exchange(world->awaited, 0) > 0) await_departures(*world->store, rank.world_size, std::chrono::seconds(1));
    throw;
  }
  world->group->set_deadline(options.deadline);
  check_same_level(*world->group);
  ProcessGroup* const group = world->group.get();
  return {std::move(world), group};
}

std::shared_ptr<ProcessGroup> connect_world(const WorldOptions& options) {
  RankInfo rank = discover_rank();
  if (options.ranks > 0) {
    check(rank.rank < options.ranks, "rank {} is none of the first {} ranks, which are the group", rank.rank,
          options.ranks);
    rank.world_size = std::min(rank.world_size, options.ranks);
    rank.local_world_size = std::min(rank.local_world_size, options.ranks);
  }
  if (rank.world_size == 1) return make_single_group();
  auto world = std::make_shared<ConnectedWorld>();
  picks_of_rank().share_by(share_over([weak = std::weak_ptr(world)] {
    const auto alive = weak.lock();
    return alive ? std::shared_ptr<Store>(alive, alive->store.get()) : nullptr;
  }));
  const auto deadline = std::chrono::ceil<std::chrono::milliseconds>(options.deadline);
  const auto silence = std::min(deadline, std::chrono::ceil<std::chrono::milliseconds>(options.silence));
  const WaitNotice notice{.say = options.say};
  world->store = connect_store(rank, silence, notice);  // whoever hosts it has given no sign of life
  if (has_other_hosts(rank)) return meet_over_store(std::move(world), rank, options);
  try {
    world->group = make_shm_group(*world->store, rank.rank, rank.world_size,
                                  {.rendezvous_deadline = deadline, .silence = options.silence, .notice = notice});
  } catch (CommError& error) {
    error.add("job", rank.job.empty() ? rank.description : rank.job);
    throw;
  }
  world->store->all_have_connected();
  world->group->set_deadline(options.deadline);
  check_same_level(*world->group);
  return {world, world->group.get()};
}

/// How many ranks compute on this host.
int ranks_here(const ProcessGroup& group) {
  if (group.kind() != kStoreGroupKind) return group.size();  // they share a host's memory
  return std::min(group.size(), discover_rank().local_world_size);
}

}  // namespace

void say_on_stderr(const std::string& text) { fmt::print(stderr, "sherd: {}\n", text); }

std::shared_ptr<ProcessGroup> world_group(const WorldOptions& options) {
  if (!known_world()) set_world_group(connect_world(options));
  return known_world();
}

const std::shared_ptr<ProcessGroup>& known_world() { return RankContext::current().state<KnownWorld>().group; }

void set_world_group(std::shared_ptr<ProcessGroup> group) {
  RankContext& context = RankContext::current();
  if (group) check_fits_rank(*group);
  if (group && group->size() > 1) context.rank_text = fmt::format("rank {} of {}", group->rank(), group->size());
  if (group) {
    name_group(group);
    SharedHeap heap = group->host().shared_heap();
    context.use_shared_heap(std::move(heap.memory), heap.bytes);
  }
  context.num_ranks_here = group ? ranks_here(*group) : 1;
  context.state<KnownWorld>().group = std::move(group);
}

}  // namespace sherd
