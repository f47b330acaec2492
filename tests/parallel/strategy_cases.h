#pragma once
// The strategies as rows of what they hold, and the meshes and dtypes to try them on. A new strategy is a row. So is
// what a step may do besides, of which tests look at memory only.
#include <string>
#include <string_view>
#include <vector>

#include "tests/parallel/nets.h"

namespace sherd::testing {

/// How long gathered parameters stay: a unit at a time, until backward is over, until the optimizer writes.
enum class Stays : std::uint8_t { never, through_backward, until_update };

/// Over which ranks the bytes of a category are divided, of one rank per element 4 of parameters and gradients and 8 of
/// optimizer state. `none` of parameters means that full tensors are the parameters, gathered only if they are cast.
struct StrategyRow {
  const char* name;
  nn::ShardedOver parameters, gradients, optimizer;
  Stays stays;
  /// 1e9 bytes per rank of a model of 6.74e9 parameters on 16 ranks, in f32 and with a cast to bf16, see its test.
  double seven_billion_f32, seven_billion_bf16;
};

inline constexpr StrategyRow kStrategyRows[] = {
    {"no_shard", nn::ShardedOver::none, nn::ShardedOver::none, nn::ShardedOver::none, Stays::until_update, 107.8,
     121.3},
    {"shard_optimizer", nn::ShardedOver::shards, nn::ShardedOver::shards, nn::ShardedOver::shards, Stays::until_update,
     33.7, 20.2},
    {"shard_grad_op", nn::ShardedOver::shards, nn::ShardedOver::shards, nn::ShardedOver::shards,
     Stays::through_backward, 33.7, 20.2},
    {"full_shard", nn::ShardedOver::shards, nn::ShardedOver::shards, nn::ShardedOver::shards, Stays::never, 6.74, 6.74},
    {"hybrid_shard", nn::ShardedOver::shards, nn::ShardedOver::shards, nn::ShardedOver::shards, Stays::never, 13.48,
     13.48},
    {"hybrid_shard_grad_op", nn::ShardedOver::shards, nn::ShardedOver::shards, nn::ShardedOver::shards,
     Stays::through_backward, 40.4, 27.0},
    {"hybrid_shard_state", nn::ShardedOver::shards, nn::ShardedOver::all, nn::ShardedOver::all, Stays::never, 8.42,
     8.42},
};

struct StrategyCase {
  const StrategyRow* row;
  int replicas = 1, shards = 1;  ///< sizes of the axes
  bool bf16 = false;

  int ranks() const { return replicas * shards; }
  std::string text() const {
    return fmt::format("{} in {} on {} x {} ranks", row->name, bf16 ? "bf16" : "f32", replicas, shards);
  }
  DeviceMesh mesh(const std::shared_ptr<ProcessGroup>& group) const {
    return replicas > 1 ? DeviceMesh(group, {{"replicate", replicas}, {"dp", shards}}) : DeviceMesh(group);
  }
  nn::UnitPolicy policy() const {
    nn::UnitPolicy policy = nn::strategy(row->name);
    if (bf16) policy.mp_policy = {.param_dtype = DType::bf16, .reduce_dtype = DType::f32};
    return policy;
  }
  /// How many of `elements` one rank has where they are divided so.
  std::int64_t part(nn::ShardedOver over, std::int64_t elements) const {
    return elements / (over == nn::ShardedOver::none ? 1 : over == nn::ShardedOver::shards ? shards : ranks());
  }
  /// Whether each replica owns a part of its shard.
  bool divides_shards() const { return row->parameters < row->optimizer && replicas > 1; }
  /// Bytes of a full element.
  std::int64_t full_bytes() const { return bf16 ? 2 : 4; }
  /// Whether full tensors are others than the parameters.
  bool gathers() const { return row->parameters != nn::ShardedOver::none || bf16; }
};

/// Every strategy in both dtypes: on lines of 2 and 4 ranks, on 2 x 2 if it is about replicas.
inline std::vector<StrategyCase> strategy_cases() {
  std::vector<StrategyCase> cases;
  for (const StrategyRow& row : kStrategyRows)
    for (const bool bf16 : {false, true}) {
      if (nn::strategy(row.name).needs_replicas) {
        cases.push_back({&row, 2, 2, bf16});
        continue;
      }
      for (const int shards : {2, 4}) cases.push_back({&row, 1, shards, bf16});
    }
  return cases;
}

/// What a step does besides training under its strategy.
struct StepExtras {
  const char* text = "";
  int slices = 0;               ///< reshard_after_forward; 0: as the strategy says
  bool in_8_bits = false;       ///< gathers and reductions
  bool keeps_storage = false;   ///< set_keep_unsharded_storage()
  int micro_batches = 1;        ///< all but the last wait for it
  bool adds_up_shards = false;  ///< they wait as shards
  bool clips = false;

  nn::UnitPolicy of(nn::UnitPolicy policy) const {
    if (slices > 0) policy.reshard_after_forward = slices;
    if (adds_up_shards) policy.gradients = nn::ShardedOver::shards;
    return policy;
  }
};

inline constexpr StepExtras kStepExtras[] = {
    {.text = "resharding to 2 ranks", .slices = 2},
    {.text = "in 8 bits", .in_8_bits = true},
    {.text = "keeping unsharded storage", .keeps_storage = true},
    {.text = "micro-batches that wait", .micro_batches = 3},
    {.text = "micro-batches that add up shards", .micro_batches = 3, .adds_up_shards = true},
    {.text = "clipping", .clips = true},
};

struct ExtendedCase {
  StrategyCase strategy;
  StepExtras extras{};
  std::string text() const { return fmt::format("{} {}", strategy.text(), extras.text); }
};

/// Every strategy as it is; with each of the extras the usual one, on 4 ranks, and the one of most levels (slices want
/// more than 2 shards).
inline std::vector<ExtendedCase> extended_cases() {
  std::vector<ExtendedCase> cases;
  for (const StrategyCase& c : strategy_cases()) cases.push_back({c});
  for (const StepExtras& extras : kStepExtras)
    for (const StrategyCase& c : strategy_cases()) {
      const bool is_usual = c.row->name == std::string_view("full_shard") && c.shards == 4;
      if (is_usual || (c.divides_shards() && extras.slices == 0)) cases.push_back({c, extras});
    }
  return cases;
}

}  // namespace sherd::testing
