#pragma once
// Shards of a unit that lie outside of memory (runtime/op/copy/offload.h), and how they come to a gather:
//
//   home    | p0 rows of this rank | p1 rows of this rank | ...      of a file, or of the host for a device
//      refresh, on the queue "disk"
//   here    | p0 rows of this rank | ...  |                          fresh memory, until the gather has read it
//      gather_start, on the queue "gather"
//   gathered
//
// On one shard nothing is gathered: without a cast fetch_into() brings the home to where modules read it, and with one
// the cast, which is compute, waits for the second half, so that the first overlaps with what computes before.
//
// Nothing goes back: what the optimizer writes is evicted by it, and what was fetched is dropped.
#include <cstdint>
#include <memory>
#include <optional>

#include "nn/parallel/shard/unit/policy.h"
#include "runtime/op/copy/offload.h"
#include "runtime/op/core/capture_sink.h"
#include "runtime/op/unit/unit_layout.h"

namespace sherd::nn {

/// Items of the queue that moves shards and their gradients; pieces of an update may be among them.
inline constexpr int kShardsInFlight = 4;

class ShardHome {
 public:
  explicit ShardHome(ShardOffload options) : options_(std::move(options)) {}

  /// u8[bytes] of zeros, for shards that are wanted on `device`. Errors of OffloadStore.
  Tensor allocate(std::int64_t bytes, Device device);
  /// Null before allocate().
  const std::shared_ptr<OffloadStore>& store() const { return store_; }
  const ShardOffload& options() const { return options_; }

  /// Starts to bring `shards`, and where no compute is needed to gather them, unless that is under way. Collective on
  /// the queue "gather".
  void start(const UnitLayout& unit, const Tensor& shards, const Tensor& full);
  /// start(), and the rest where there is one.
  void finish(const UnitLayout& unit, const Tensor& shards, const Tensor& full);
  /// Whether there is a rest to do.
  bool is_started() const { return started_.has_value(); }
  void cancel() { started_.reset(); }

 private:
  struct Started {
    Tensor here;
    std::uint32_t version;  // of the shards
  };
  OffloadAttrs attrs() const;

  ShardOffload options_;
  std::shared_ptr<OffloadStore> store_;
  std::optional<Started> started_;
};

}  // namespace sherd::nn
