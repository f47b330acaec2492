#include "tools/plan/space.h"

#include "runtime/tensor/error.h"
#include "tools/plan/planner.h"

namespace sherd::plan {

namespace {

std::vector<int> divisors(int number) {
  std::vector<int> all;
  for (int d = 1; d <= number; ++d)
    if (number % d == 0) all.push_back(d);
  return all;
}

/// Ranks of dp to reshard to: those of a host, or without several hosts the least that share; 0: none.
int slice_of(int dp, int tp, const HostLayout& hosts) {
  const int here = hosts.hosts > 1 ? hosts.per_host / tp : 0;
  if (here > 1 && here < dp && dp % here == 0) return here;
  for (const int k : divisors(dp))
    if (k > 1 && k < dp) return k;
  return 0;
}

std::vector<Sharding> shardings_of(int ranks, const HostLayout& hosts) {
  std::vector<Sharding> all;
  for (const int tp : divisors(ranks)) {
    const int data = ranks / tp;
    all.push_back({.dp = data, .tp = tp, .strategy = "full_shard"});
    if (data == 1) continue;
    for (const char* const strategy : {"no_shard", "shard_optimizer", "shard_grad_op"})
      all.push_back({.dp = data, .tp = tp, .strategy = strategy});
    if (const int k = slice_of(data, tp, hosts); k > 0)
      all.push_back({.dp = data, .tp = tp, .strategy = "full_shard", .reshard = k});
    for (const int replicate : divisors(data))
      for (const char* const strategy : {"hybrid_shard", "hybrid_shard_grad_op", "hybrid_shard_state"})
        if (replicate > 1 && replicate < data)
          all.push_back({.replicate = replicate, .dp = data / replicate, .tp = tp, .strategy = strategy});
  }
  return all;
}

}  // namespace

std::string Sharding::mesh() const {
  std::string text = replicate > 1 ? fmt::format("replicate={},", replicate) : "";
  text += fmt::format("dp={}", dp);
  return tp > 1 ? text + fmt::format(",tp={}", tp) : text;
}

SearchSpace::SearchSpace(const TrainConfig& base, const HostLayout& hosts) : base_(base) {
  const bool is_free =
      base.plan.numerics.layout_free();  // then micro-batches are leaves, which a rank has its share of
  if (is_free) nn::local_batch(base.plan, base.batch, 1);
  for (Sharding& sharding : shardings_of(hosts.ranks(), hosts)) {
    if (base.batch % sharding.data_ranks() != 0) continue;
    if (is_free && base.plan.leaves % sharding.data_ranks() != 0) continue;
    const auto index = static_cast<std::uint32_t>(shardings_.size());
    const std::int64_t sequences = base.batch / sharding.data_ranks();
    for (std::int64_t micro = 1; micro <= (is_free ? 1 : sequences); ++micro) {
      if (sequences % micro != 0) continue;
      for (std::uint8_t units = 0; units < kUnits.size(); ++units)
        for (std::uint8_t recompute = 0; recompute < kRecompute.size(); ++recompute)
          for (const bool shards : {false, true})
            if (!shards || (micro > 1 && sharding.strategy != "no_shard"))
              ways_.push_back({index, units, recompute, shards, micro});
    }
    shardings_.push_back(std::move(sharding));
  }
  check(
      !ways_.empty(),
      "a batch of {} sequences gives the data ranks of no mesh of {} ranks whole sequences; give --batch a multiple of "
      "{}, or of its divisors",
      base.batch, hosts.ranks(), hosts.ranks());
}

std::int64_t SearchSpace::fewest_sequences(const Way& way) const {
  return base_.plan.numerics.layout_free() ? base_.plan.leaves / sharding(way).data_ranks() : 1;
}

std::int64_t SearchSpace::sequences(const Way& way) const {
  return base_.batch / sharding(way).data_ranks() / way.micro_batches;
}

TrainConfig SearchSpace::config(const Way& way, std::int64_t sequences) const {
  const Sharding& sharding = this->sharding(way);
  Changes changes{{"mesh", sharding.mesh()},
                  {"strategy", sharding.strategy},
                  {"reshard_after_forward", sharding.reshard > 0 ? std::to_string(sharding.reshard) : "true"},
                  {"units", kUnits[way.units]},
                  {"recompute", kRecompute[way.recompute]},
                  {"batch", std::to_string(sequences * way.micro_batches * sharding.data_ranks())},
                  {"accumulate", std::to_string(way.micro_batches)},
                  {"accumulate_shards", way.accumulate_shards ? "true" : "false"}};
  if (sharding.tp > 1) changes.emplace_back("parallel.sequence", "true");
  return with(base_, changes);
}

std::string SearchSpace::name(const Way& way) const {
  const Sharding& sharding = this->sharding(way);
  std::string name = fmt::format("{} {}", sharding.mesh(), sharding.strategy);
  if (sharding.reshard > 0) name += fmt::format(", reshard to {}", sharding.reshard);
  if (way.recompute > 0) name += fmt::format(", recompute {}", kRecompute[way.recompute]);
  if (kUnits[way.units] != std::string_view("block")) name += fmt::format(", units {}", kUnits[way.units]);
  if (way.micro_batches > 1)
    name += fmt::format(", accumulate {}{}", way.micro_batches, way.accumulate_shards ? " shards" : "");
  return name;
}

}  // namespace sherd::plan
