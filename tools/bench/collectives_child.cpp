// `--child collectives` under `sherd run`: a request is "all_gather BYTES CALLS" or "reduce_scatter BYTES CALLS", BYTES
// of the full f32 tensor; the answer, seconds of one call. Shards and gradients lie where fully_shard keeps them.
#include <algorithm>
#include <chrono>
#include <sstream>

#include "runtime/comm/group/host_group.h"
#include "runtime/comm/job/world.h"
#include "runtime/op/rows/ops.h"
#include "tools/bench/child.h"

namespace sherd::bench {

namespace {

// The buffers of one size, f32.
class Collectives {
 public:
  Collectives(ProcessGroup& group, std::int64_t elements)
      : group_(group),
        counts_(static_cast<std::size_t>(group.size()), elements / group.size()),
        shard_(Tensor::empty({counts_[0]}, DType::f32, Device::cpu(), MemoryCategory::parameters)),
        gathered_(Tensor::empty({elements}, DType::f32, Device::cpu(), MemoryCategory::unsharded)),
        gradients_(Tensor::empty({elements}, DType::f32, Device::cpu(), MemoryCategory::gradients)),
        reduced_(Tensor::empty({counts_[0]}, DType::f32, Device::cpu(), MemoryCategory::gradients)) {
    const auto number = static_cast<float>(group.rank() + 1);
    std::fill_n(shard_.mutable_data<float>(), shard_.numel(), number);
    std::fill_n(gradients_.mutable_data<float>(), elements, number);
    std::fill_n(gathered_.mutable_data<float>(), elements, 0.0f);
    std::fill_n(reduced_.mutable_data<float>(), reduced_.numel(), 0.0f);
  }

  void all_gather() { group_.host().all_gather({{.in = {shard_.raw()}, .out = {gathered_.raw()}, .counts = counts_}}); }
  void reduce_scatter() {
    group_.host().reduce_scatter({{.in = {gradients_.raw()}, .out = {reduced_.raw()}, .counts = counts_}}, {});
  }
  /// Rank r's part holds r + 1, and a sum of all is 1 + ... + ranks.
  void check_results() const {
    const int ranks = group_.size();
    for (int r = 0; r < ranks; ++r)
      check(gathered_.data<float>()[(r + 1) * counts_[0] - 1] == static_cast<float>(r + 1),
            "collectives: all_gather brought wrong data of rank {}", r);
    check(reduced_.data<float>()[counts_[0] - 1] == static_cast<float>(ranks * (ranks + 1) / 2),
          "collectives: reduce_scatter gave a wrong sum");
  }

 private:
  ProcessGroup& group_;
  std::vector<std::int64_t> counts_;
  Tensor shard_, gathered_, gradients_, reduced_;
};

nlohmann::json run(ProcessGroup& group, std::optional<Collectives>& buffers, std::int64_t& size,
                   const std::string& request) {
  std::istringstream words(request);
  std::string kind;
  std::int64_t bytes = 0;
  int calls = 0;
  words >> kind >> bytes >> calls;
  check(
      (kind == "all_gather" || kind == "reduce_scatter") && bytes > 0 && bytes % (64 * group.size()) == 0 && calls > 0,
      "collectives: \"{}\" is not all_gather|reduce_scatter BYTES CALLS", request);
  if (std::exchange(size, bytes) != bytes) buffers.emplace(group, bytes / 4);
  const auto call = [&] { kind == "all_gather" ? buffers->all_gather() : buffers->reduce_scatter(); };
  buffers->all_gather();  // both are warm, and both are checked
  buffers->reduce_scatter();
  buffers->check_results();
  group.host().barrier();
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < calls; ++i) call();
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() / calls;
  return {{"seconds", {seconds}}};
}

}  // namespace

int run_collectives_child(std::span<const std::string_view> args) {
  check(args.empty(), "the child collectives takes no flags");
  const std::shared_ptr<ProcessGroup> group = world_group();
  pin_to_cpu(group->rank());
  std::optional<Collectives> buffers;
  std::int64_t size = 0;
  serve_ranks(*group, {{"peer", "sherd"}},
              [&](const std::string& request) { return run(*group, buffers, size, request); });
  return 0;
}

}  // namespace sherd::bench
