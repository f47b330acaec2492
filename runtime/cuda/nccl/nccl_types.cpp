#include "runtime/cuda/nccl/nccl_types.h"

#include <algorithm>
#include <iterator>

#include <fmt/format.h>

namespace sherd::cuda::nccl {

namespace {

// ncclConfig_t only grows, at its end. tests/cuda/nccl/symbols.txt has its sizes as headers of releases say them.
struct Growth {
  int since;
  std::size_t bytes;
};
constexpr Growth kGrowth[] = {
    {21700, offsetof(Config, comm_name)},  // up to split_share, and in 2.26 traffic_class in what was padding
    {22700, offsetof(Config, num_channels_per_net_peer)},
    {22800, sizeof(Config)},
};

}  // namespace

Config config_for(int running_version) {
  const int version = std::min(running_version, kKnownVersion);
  const auto* growth = std::begin(kGrowth);
  while (std::next(growth) != std::end(kGrowth) && std::next(growth)->since <= version) ++growth;
  return {.size = growth->bytes, .version = static_cast<unsigned>(version)};
}

std::string version_text(int version) {
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

}  // namespace sherd::cuda::nccl
