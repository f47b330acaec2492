#include "tests/cuda/nccl/fake_ranks.h"

#include <exception>
#include <thread>

#include "tests/support/emulated_gpu/control.h"

namespace sherd::cuda::nccl {

void FakeNccl::start(const fake::Configuration& configuration) {
  fake::reset(configuration);
  emulated::reset();
}

NcclApi fake_api() { return NcclApi(Library("libnccl.so.2")); }

Config FakeRank::config(bool blocking, const char* name) const {
  Config config = config_for(api.version);
  config.blocking = blocking ? 1 : 0;
  config.comm_name = name;
  return config;
}

Comm FakeRank::join(const UniqueId& id, const Config& config) const {
  Comm made = nullptr;
  Config mine = config;
  const Result result = api.init_rank(&made, world, id, rank, &mine);
  check_nccl(api, settle(result, made), "making a communicator", made);
  return made;
}

Result FakeRank::settle(Result result, Comm of) const {
  while (result == Result::in_progress) {
    if (api.async_error(of ? of : comm, &result) != Result::success) return Result::internal_error;
    std::this_thread::yield();
  }
  return result;
}

void FakeRank::expect(Result result, Result wanted) const {
  EXPECT_EQ(result, wanted) << "rank " << rank << ": " << api.text_of(result, comm);
}

Result FakeRank::error_of(Comm of, std::string& why) const {
  Result result = Result::success;
  while (result == Result::success || result == Result::in_progress) {
    if (api.async_error(of, &result) != Result::success) break;
    std::this_thread::yield();
  }
  why = api.last_error(of);
  return result;
}

void run_fake_threads(int world, const FakeBody& body, int num_ids) {
  const NcclApi api = fake_api();
  ASSERT_TRUE(api.library.usable()) << api.library.reason();
  std::vector<UniqueId> ids(static_cast<std::size_t>(num_ids));
  for (UniqueId& id : ids) check_nccl(api, api.get_unique_id(&id), "making an id");
  std::vector<std::thread> threads;
  std::vector<std::string> errors(static_cast<std::size_t>(world));
  for (int r = 0; r < world; ++r)
    threads.emplace_back([&, r] {
      try {
        sherd::cuda::check(cudaSetDevice(r), "cudaSetDevice");
        FakeRank rank{api, r, world};
        body(rank, ids);
      } catch (const std::exception& error) { errors[static_cast<std::size_t>(r)] = error.what(); }
    });
  for (std::thread& thread : threads) thread.join();
  for (const std::string& error : errors) EXPECT_EQ(error, "");
  EXPECT_EQ(emulated::report(), "");
}

void run_fake_ranks(int world, const FakeBody& body, int num_ids) {
  run_fake_threads(
      world,
      [&](FakeRank& rank, const std::vector<UniqueId>& ids) {
        rank.comm = rank.join(ids[0], rank.config());
        body(rank, ids);
        if (rank.comm) rank.expect(rank.api.destroy(rank.comm));
      },
      num_ids);
}

}  // namespace sherd::cuda::nccl
