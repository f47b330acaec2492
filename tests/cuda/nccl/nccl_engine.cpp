#include "tests/cuda/nccl/nccl_engine.h"

#include "runtime/cuda/nccl/nccl_group.h"
#include "tests/cuda/cuda_test.h"
#include "tests/cuda/nccl/fake_ranks.h"

namespace sherd::cuda::nccl {

namespace {

/// Bound once per release that the fake poses as: a group uses it as long as it lives.
const NcclApi& api_now() {
  static std::mutex mutex;
  static std::map<int, NcclApi> known;
  const std::lock_guard lock(mutex);
  NcclApi api = fake_api();
  const int version = api.version;
  return known.try_emplace(version, std::move(api)).first->second;
}

}  // namespace

NcclGroupOptions quick_options() {
  NcclGroupOptions options;
  options.deadline = std::chrono::seconds(30);
  options.closing_deadline = std::chrono::milliseconds(300);
  return options;
}

std::shared_ptr<ProcessGroup> group_over(const std::shared_ptr<ProcessGroup>& host, NcclGroupOptions options) {
  options.device = device_of_rank(host->rank());
  return make_nccl_group(api_now(), host, std::move(options));
}

sherd::testing::Engine nccl_engine(const NcclGroupOptions& options) {
  const sherd::testing::Engine threads = sherd::testing::host_engines().front();
  return {.name = "nccl", .run = [threads, options](int count, const sherd::testing::EngineBody& body) {
            return threads.run(count, [&](ProcessGroup& group, Device) {
              const auto over = group_over(group.shared_from_this(), options);
              body(*over, device_of_rank(over->rank()));
            });
          }};
}

}  // namespace sherd::cuda::nccl
