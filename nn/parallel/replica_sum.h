#pragma once
// HSDP's second half: shards of gradients are added up over the ranks that hold the same shard. It runs on the
// reduce-scatter stream behind the reduction over the shard axis, one launch per group:
//
//   full gradients --reduce_scatter--> shard --all_reduce--> shard                   fresh gradients: in place
//                                      aside --all_reduce--> aside --cast, add--> shard
#include <vector>

#include "runtime/comm/group/process_group.h"
#include "runtime/memory/storage.h"

namespace sherd::nn {

class ReplicaSum {
 public:
  ReplicaSum() = default;  ///< of no replicas: run() does nothing
  /// Over `group`, of this rank's results of `parts`, whose counts have its own at `shard_rank`. Redirects those that
  /// must not be added up where they go: sums with earlier gradients, unless replicas hold terms of these too
  /// (`unsummed`, one per part), and results of a wider type than travels.
  ReplicaSum(ProcessGroup& group, int shard_rank, std::span<ScatterPart> parts, const std::vector<bool>& unsummed);

  /// What lies aside, in use until run() has ended; null if nothing does. Taken by the rank's thread, which lends it.
  Ref<Storage> take_memory() { return std::move(memory_); }
  /// That it adds up.
  std::int64_t bytes() const;
  /// Blocks. On any thread, after the reduction over the shard axis.
  void run() const;

 private:
  struct Store {
    const std::byte* from;
    std::byte* to;
    std::int64_t count;
    DType in, out;
    bool accumulate;
  };
  ProcessGroup* group_ = nullptr;
  Ref<Storage> memory_;
  std::vector<FlatPart> sums_;
  std::vector<Store> stores_;
};

}  // namespace sherd::nn
