// `--child units`: 32 units of two 16 x 16 linears, each a group of fully_shard, so that the host's work is all there
// is. A request is "step N", forward and backward of a batch of 8, or "adamw N", a step of AdamW over the 128
// parameters; nothing is captured.
#include <chrono>
#include <sstream>

#include "nn/layers/linear.h"
#include "nn/module_list.h"
#include "nn/optim/adamw.h"
#include "nn/parallel/shard/fully_shard.h"
#include "runtime/autograd/autograd.h"
#include "runtime/comm/group/host_group.h"
#include "runtime/comm/job/world.h"
#include "runtime/cpu/parallel.h"
#include "runtime/op/ops.h"
#include "tools/bench/child.h"
#include "tools/train/flags.h"

namespace sherd::bench {

namespace {

constexpr std::int64_t kUnits = 32, kWidth = 16, kBatch = 8;

struct Unit : nn::Layer<Unit> {
  nn::Linear& first = add<nn::Linear>("first", kWidth, kWidth);
  nn::Linear& second = add<nn::Linear>("second", kWidth, kWidth);
  Tensor forward(const Tensor& x) { return second(first(x)); }  // [B, 16] -> [B, 16]
};

struct Units : nn::Layer<Units> {
  nn::ModuleList<Unit>& units = add<nn::ModuleList<Unit>>("units");
  Units() {
    for (std::int64_t i = 0; i < kUnits; ++i) units.append();
  }
  Tensor forward(Tensor x) {
    for (Unit* unit : units.items()) x = (*unit)(x);
    return x;
  }
};

class UnitsRun {
 public:
  UnitsRun(bool sharded, std::shared_ptr<ProcessGroup> group) : group_(std::move(group)) {
    if (sharded) {
      const DeviceMesh mesh(group_, "dp");
      for (Unit* unit : model_.units.items()) nn::fully_shard(*unit, mesh);
      nn::fully_shard(model_, mesh);
    }
    model_.materialize(nn::Seed{1});
    optimizer_ = std::make_unique<nn::AdamW>(model_.parameters(), nn::AdamWOptions{.lr = 1e-6});
    x_ = random_normal({kBatch, kWidth}, random_key(2, "x", "data", static_cast<std::uint64_t>(group_->rank())));
  }

  nlohmann::json answer(const std::string& request) {
    std::istringstream words(request);
    std::string name;
    int count = 0;
    words >> name >> count;
    check((name == "step" || name == "adamw") && count >= 1, "units: \"{}\" is not step|adamw COUNT", request);
    std::vector<double> seconds;
    for (int i = 0; i < kWarming + count; ++i) {
      if (name == "adamw") differentiate();
      group_->host().barrier();
      const auto start = std::chrono::steady_clock::now();
      if (name == "adamw") optimizer_->step();
      else differentiate();
      const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
      if (i >= kWarming) seconds.push_back(taken.count());
      optimizer_->clear_gradients();
    }
    return {{"seconds", seconds}};
  }

 private:
  static constexpr int kWarming = 3;
  void differentiate() { backward(sum(model_(x_))); }

  std::shared_ptr<ProcessGroup> group_;
  Units model_;
  std::unique_ptr<nn::AdamW> optimizer_;
  Tensor x_;
};

}  // namespace

int run_units_child(std::span<const std::string_view> args) {
  bool sharded = true;
  ConfigTable table;
  table.add("sharded", &sharded, "by fully_shard, also on one rank");
  apply_flags(table, parse_command_line(table, args));
  const std::shared_ptr<ProcessGroup> group = world_group();
  pin_to_cpu(group->rank());
  set_threads(1);
  UnitsRun run(sharded, group);
  serve_ranks(*group, {{"peer", "sherd"}}, [&](const std::string& request) { return run.answer(request); });
  return 0;
}

}  // namespace sherd::bench
