#pragma once
// A user's gather in the hands of a unit's buffers: which half of it has run, of which values.
#include <cstdint>
#include <memory>
#include <optional>

#include "nn/parallel/shard/gather/unit_gather.h"
#include "runtime/op/core/capture_sink.h"

namespace sherd::nn {

class CustomGather {
 public:
  explicit CustomGather(std::shared_ptr<UnitGather> gather) : gather_(std::move(gather)) {}

  void materialize(const UnitLayout& unit, Device device) const { gather_->materialize(unit, device); }
  bool is_started() const { return started_.has_value(); }
  /// Whether `full` holds what finish() put there of the present shards. What a replay puts there counts as another.
  bool is_current(const Tensor& shards, const Tensor& full) const;
  /// The user's start(), unless it has run for the present shards, in this recording if there is one.
  void start(const UnitLayout& unit, const Tensor& shards, const Tensor& full);
  /// start() and the user's finish(); `full` has the version of the shards then, by which backward knows the values
  /// that forward saw. Error naming the unit if that leaves `full` without bytes.
  void finish(const UnitLayout& unit, const Tensor& shards, const Tensor& full);
  /// The user's cancel(), if start() has run and finish() has not. Local.
  void cancel();
  /// The user's cancel(): an eager step or a replay may have been left anywhere. Local.
  void drop();

 private:
  struct Started {
    std::uint32_t shards = 0;                // their version
    const CaptureSink* recording = nullptr;  // that has the rows; null: none
  };
  std::shared_ptr<UnitGather> gather_;
  std::optional<Started> started_;
  std::optional<std::uint32_t> gathered_;  // of which version of the shards
};

}  // namespace sherd::nn
