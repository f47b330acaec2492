#pragma once
// NCCL's types, declared by us: which release runs is known at run time only, and nccl.h is not needed to build. Values
// and layouts are NVIDIA's; tests/cuda/nccl/header_test.cpp compares each with the installed nccl.h.
#include <climits>
#include <cstddef>
#include <string>

#include <cuda_runtime_api.h>

namespace sherd::cuda::nccl {

/// A communicator, opaque; null is none.
struct Communicator;
using Comm = Communicator*;

/// What all ranks of a communicator are given by the one that made it.
struct UniqueId {
  char bytes[128];
};

/// Newer releases have more: what is not here has a text of NCCL's own (2.32 has 8, a timeout).
enum class Result : unsigned {
  success = 0,
  unhandled_cuda_error = 1,
  system_error = 2,
  internal_error = 3,
  invalid_argument = 4,
  invalid_usage = 5,
  remote_error = 6,
  in_progress = 7,
};

enum class DataType : unsigned {
  int8 = 0,
  uint8 = 1,
  int32 = 2,
  uint32 = 3,
  int64 = 4,
  uint64 = 5,
  float16 = 6,
  float32 = 7,
  float64 = 8,
  bfloat16 = 9,
  float8e4m3 = 10,
  float8e5m2 = 11,
};

/// Values from 5 on are made by ncclRedOpCreatePreMulSum.
enum class RedOp : unsigned { sum = 0, prod = 1, max = 2, min = 3, avg = 4 };

/// Where the factor of ncclRedOpCreatePreMulSum lies.
enum class ScalarResidence : unsigned { device = 0, host_immediate = 1 };

inline constexpr int kUndefined = INT_MIN;  ///< a setting that NCCL shall choose
inline constexpr int kNoColor = -1;         ///< of a rank that is in no part of a split

/// ncclConfig_t as of 2.28; config_for() gives one. What an older release does not know lies beyond `size`.
struct Config {
  std::size_t size;
  unsigned magic = 0xcafebeef;
  unsigned version;
  int blocking = kUndefined;
  int cga_cluster_size = kUndefined;
  int min_ctas = kUndefined;
  int max_ctas = kUndefined;
  const char* net_name = nullptr;
  int split_share = kUndefined;
  int traffic_class = kUndefined;
  const char* comm_name = nullptr;
  int collnet_enable = kUndefined;
  int cta_policy = kUndefined;
  int shrink_share = kUndefined;
  int nvls_ctas = kUndefined;
  int num_channels_per_net_peer = kUndefined;
  int nvlink_centric_sched = kUndefined;
};

inline constexpr int kKnownVersion = 22809;  ///< the release that these declarations are of, as ncclGetVersion says it

/// A Config with everything undefined, in the size and version of the older of `running_version` (21803: 2.18.3) and
/// kKnownVersion: NCCL reads `size` bytes, and a release refuses or ignores what it does not know.
Config config_for(int running_version);

/// "2.28.9" of 22809.
std::string version_text(int version);

}  // namespace sherd::cuda::nccl
