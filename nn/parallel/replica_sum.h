#pragma once
// HSDP's second half: gradient shards are all-reduced over replicas. It runs on the queue "reduce" after the
// reduction over the shard axis, one launch per group:
//
//   full gradients --reduce_scatter--> shard   --all_reduce--> shard                   fresh gradients: in place
//                                      scratch --all_reduce--> scratch --cast, add--> shard
#include <vector>

#include "runtime/comm/group/process_group.h"
#include "runtime/memory/storage.h"

namespace sherd::nn {

class ReplicaSum {
 public:
  ReplicaSum() = default;  ///< no replicas: run() does nothing
  /// All-reduces this rank's results of `parts`, of counts[shard_rank] elements each, over `group`. Redirects `parts`
  /// that cannot be all-reduced in place to scratch memory: those that accumulate onto earlier gradients, unless these
  /// are not summed over replicas yet either (`unsummed`, one per part), and those of a wider dtype than the wire's.
  ReplicaSum(ProcessGroup& group, int shard_rank, std::span<ScatterPart> parts, const std::vector<bool>& unsummed);

  /// The scratch memory, in use until run() returns; null if there is none. Called on the rank's thread, which lends
  /// it.
  Ref<Storage> take_memory() { return std::move(memory_); }
  /// Of the all-reduce.
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
