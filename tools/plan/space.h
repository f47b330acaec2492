#pragma once
// All ways to spread one batch over ranks: meshes of replicate x dp x tp, strategies, units, recomputation and
// micro-batches.
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/exec/host_layout.h"
#include "tools/train/config.h"

namespace sherd::plan {

using namespace train;

/// A mesh, and a strategy on it.
struct Sharding {
  int replicate = 1, dp = 1, tp = 1;
  std::string strategy{};
  int reshard = 0;  ///< ranks that share what was gathered after forward; 0: as the strategy says
  int data_ranks() const { return replicate * dp; }
  std::string mesh() const;  ///< "replicate=2,dp=8"
};

inline constexpr std::array<const char*, 3> kRecompute{"none", "selective", "full"}, kUnits{"coarse", "block", "fine"};

/// One way: indices of a Sharding, of kUnits and of kRecompute.
struct Way {
  std::uint32_t sharding = 0;
  std::uint8_t units = 1, recompute = 0;
  bool accumulate_shards = false;
  std::int64_t micro_batches = 1;
};

class SearchSpace {
 public:
  /// Takes all ranks of `hosts`, and leaves out what gives a rank a part of a sequence. Error naming batch and ranks
  /// where nothing is left.
  SearchSpace(const TrainConfig& base, const HostLayout& hosts);
  const std::vector<Sharding>& shardings() const { return shardings_; }
  const std::vector<Way>& ways() const { return ways_; }
  const Sharding& sharding(const Way& way) const { return shardings_[way.sharding]; }
  /// Sequences of a micro-batch of a rank.
  std::int64_t sequences(const Way& way) const;
  /// The fewest that one may have.
  std::int64_t fewest_sequences(const Way& way) const;
  /// The config of a way, of `sequences` in each of its micro-batches on each rank with data.
  TrainConfig config(const Way& way, std::int64_t sequences) const;
  TrainConfig config(const Way& way) const { return config(way, sequences(way)); }
  /// "dp=64,tp=8 full_shard, recompute full, units fine, accumulate 4"
  std::string name(const Way& way) const;

 private:
  const TrainConfig base_;
  std::vector<Sharding> shardings_;
  std::vector<Way> ways_;
};

}  // namespace sherd::plan
