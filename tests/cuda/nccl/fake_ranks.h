#pragma once
// Ranks that talk by the emulated NCCL: threads or processes, each with a device, a stream and a communicator.
#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "runtime/cuda/nccl/nccl_api.h"
#include "tests/cuda/device_memory.h"
#include "tests/support/emulated_nccl/control.h"

namespace sherd::cuda::nccl {

inline constexpr DataType kF32 = DataType::float32;

/// The fixture: a fresh emulated GPU and a fresh NCCL, before and after.
class FakeNccl : public ::testing::Test {
 protected:
  FakeNccl() { start({}); }
  ~FakeNccl() override { start({}); }
  static void start(const fake::Configuration& configuration);
};

/// A communicator and what it may be used with. Destroyed at the end, or aborted if `is_over` was not said.
struct FakeRank {
  const NcclApi& api;
  int rank = 0, world = 1;
  TestStream stream{};
  Comm comm = nullptr;

  Config config(bool blocking = true, const char* name = nullptr) const;
  /// A communicator of `id`; polls until it is made. Throws Error.
  Comm join(const UniqueId& id, const Config& config) const;
  /// Polls until the communicator, another than `comm` if it is named, is not in progress.
  Result settle(Result result, Comm of = nullptr) const;
  /// What `result` must have been, with the last error if it was not.
  void expect(Result result, Result wanted = Result::success) const;
  /// Throws Error unless success after polling.
  void check(Result result, const char* what) const { check_nccl(api, settle(result), what, comm); }
  /// Polls until the communicator has an error or `limit` polls are over; returns it, with its text in `why`.
  Result error_of(Comm of, std::string& why) const;
};

/// A body that gets UniqueIds made by rank 0: as many as are asked for.
using FakeBody = std::function<void(FakeRank& rank, const std::vector<UniqueId>& ids)>;

/// Runs the body on threads, rank r on device r, with a blocking communicator `comm` of the first id.
void run_fake_ranks(int world, const FakeBody& body, int num_ids = 1);
/// The same, without making `comm`.
void run_fake_threads(int world, const FakeBody& body, int num_ids = 1);

/// The fake, of the version that it poses as now.
NcclApi fake_api();

}  // namespace sherd::cuda::nccl
