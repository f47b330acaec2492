#include "runtime/comm/job/hosts.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "runtime/comm/group/host_group.h"
#include "runtime/tensor/error.h"
#include "runtime/tensor/indices.h"

namespace sherd {

namespace {

// What a rank tells the others.
constexpr std::size_t kFacts = 4;
using RankFacts = std::array<std::int64_t, kFacts>;

RankFacts facts_of(const RankInfo& info) {
  return {info.rank, info.world_size, info.local_rank, info.local_world_size};
}

RankInfo from_facts(std::span<const std::int64_t, kFacts> facts) {
  RankInfo info;
  info.rank = static_cast<int>(facts[0]);
  info.world_size = static_cast<int>(facts[1]);
  info.local_rank = static_cast<int>(facts[2]);
  info.local_world_size = static_cast<int>(facts[3]);
  return info;
}

}  // namespace

bool has_other_hosts(const RankInfo& own) {
  return own.source != "sherd run" && own.local_world_size != own.world_size;
}

int count_hosts(std::span<const RankInfo> ranks) {
  const auto size = static_cast<int>(ranks.size());
  for (const int r : up_to(size))
    if (const RankInfo& info = ranks[static_cast<std::size_t>(r)]; info.rank != r || info.world_size != size) return 1;
  const int per_host = ranks[0].local_world_size;
  for (const RankInfo& info : ranks)
    check(info.local_world_size == per_host,
          "hosts have different numbers of ranks: of {} ranks, {} {} on the host of rank 0, {} on that of rank {}; "
          "start equally many on each",
          size, per_host, per_host == 1 ? "is" : "are", info.local_world_size, info.rank);
  check(size % per_host == 0, "{} ranks cannot lie on hosts of {} each, as every rank says; start equally many on each",
        size, per_host);
  for (const RankInfo& info : ranks)
    check(info.local_rank == info.rank % per_host,
          "ranks are not numbered host by host: rank {} is number {} of the {} on its host, where number {} was "
          "expected; have the launcher fill one host after the other",
          info.rank, info.local_rank, per_host, info.rank % per_host);
  return size / per_host;
}

int count_hosts(ProcessGroup& group, const RankInfo& own) {
  const auto size = static_cast<std::size_t>(group.size()), self = static_cast<std::size_t>(group.rank());
  std::vector<std::int64_t> all(size * kFacts);
  std::ranges::copy(facts_of(own), all.begin() + static_cast<std::ptrdiff_t>(self * kFacts));
  group.host().all_gather({in_place(all.data(), DType::i64, std::vector<std::int64_t>(size, kFacts))});
  std::vector<RankInfo> ranks;
  for (const std::size_t r : up_to(size))
    ranks.push_back(from_facts(std::span<const std::int64_t, kFacts>(all.data() + r * kFacts, kFacts)));
  return count_hosts(ranks);
}

}  // namespace sherd
