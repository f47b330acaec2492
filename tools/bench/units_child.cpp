// `--child units`: 32 units (`--units`) of two 16 x 16 linears, each a group of fully_shard, so that the host's work is
// all there is. A request is "step N", forward and backward of a batch of 8, or "adamw N", a step of AdamW over their
// parameters, nothing captured; "wrap N", fully_shard() of all units of a fresh model; or "record N", the call of a
// captured forward and backward that records it.
#include <chrono>
#include <sstream>

#include "compile/compile.h"
#include "nn/layers/linear.h"
#include "nn/module_list.h"
#include "nn/optim/adamw.h"
#include "nn/parallel/shard/wrap/fully_shard.h"
#include "runtime/autograd/autograd.h"
#include "runtime/comm/group/host_group.h"
#include "runtime/comm/job/world.h"
#include "runtime/cpu/parallel.h"
#include "runtime/op/rows/ops.h"
#include "tools/bench/child.h"
#include "tools/train/flags.h"

namespace sherd::bench {

namespace {

constexpr std::int64_t kWidth = 16, kBatch = 8;

struct Unit : nn::Layer<Unit> {
  nn::Linear& first = add<nn::Linear>("first", kWidth, kWidth);
  nn::Linear& second = add<nn::Linear>("second", kWidth, kWidth);
  Tensor forward(const Tensor& x) { return second(first(x)); }  // [B, 16] -> [B, 16]
};

struct Units : nn::Layer<Units> {
  nn::ModuleList<Unit>& units = add<nn::ModuleList<Unit>>("units");
  explicit Units(std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) units.append();
  }
  Tensor forward(Tensor x) {
    for (Unit* unit : units.items()) x = (*unit)(x);
    return x;
  }
};

void shard(Units& model, const DeviceMesh& mesh) {
  for (Unit* unit : model.units.items()) nn::fully_shard(*unit, mesh);
  nn::fully_shard(model, mesh);
}

class UnitsRun {
 public:
  UnitsRun(std::int64_t units, bool sharded, std::shared_ptr<ProcessGroup> group)
      : group_(std::move(group)), units_(units), model_(units) {
    if (sharded) shard(model_, DeviceMesh(group_, "dp"));
    model_.materialize(nn::Seed{1});
    optimizer_ = std::make_unique<nn::AdamW>(model_.parameters(), nn::AdamWOptions{.lr = 1e-6});
    x_ = random_normal({kBatch, kWidth}, random_key(2, "x", "data", static_cast<std::uint64_t>(group_->rank())));
  }

  nlohmann::json answer(const std::string& request) {
    std::istringstream words(request);
    std::string name;
    int count = 0;
    words >> name >> count;
    const auto round = name == "step"     ? &UnitsRun::step
                       : name == "adamw"  ? &UnitsRun::adamw
                       : name == "wrap"   ? &UnitsRun::wrap
                       : name == "record" ? &UnitsRun::record
                                          : nullptr;
    check(round && count >= 1, "units: \"{}\" is not step|adamw|wrap|record COUNT", request);
    std::vector<double> seconds;
    for (int i = 0; i < kWarming + count; ++i) {
      const double taken = (this->*round)();
      if (i >= kWarming) seconds.push_back(taken);
      optimizer_->clear_gradients();
    }
    return {{"seconds", seconds}};
  }

 private:
  static constexpr int kWarming = 3;
  void differentiate() { backward(sum(model_(x_))); }
  template <class Fn>
  double seconds_to(const Fn& work) {
    group_->host().barrier();
    const auto start = std::chrono::steady_clock::now();
    work();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }

  double step() {
    return seconds_to([&] { differentiate(); });
  }
  double adamw() {
    differentiate();
    return seconds_to([&] { optimizer_->step(); });
  }
  double wrap() {
    Units fresh(units_);
    const DeviceMesh mesh(group_, "dp");
    return seconds_to([&] { shard(fresh, mesh); });
  }
  double record() {
    CompiledStep captured(
        [&](std::span<const Tensor>) {
          differentiate();
          optimizer_->clear_gradients();
          return std::vector<Tensor>{};
        },
        {.compare = false});
    captured({});
    return seconds_to([&] { captured({}); });
  }

  std::shared_ptr<ProcessGroup> group_;
  const std::int64_t units_;
  Units model_;
  std::unique_ptr<nn::AdamW> optimizer_;
  Tensor x_;
};

}  // namespace

int run_units_child(std::span<const std::string_view> args) {
  bool sharded = true;
  std::int64_t units = 32;
  ConfigTable table;
  table.add("sharded", &sharded, "by fully_shard, also on one rank");
  table.add("units", &units, "how many the model has");
  apply_flags(table, parse_command_line(table, args));
  const std::shared_ptr<ProcessGroup> group = world_group();
  pin_to_cpu(group->rank());
  set_threads(1);
  UnitsRun run(units, sharded, group);
  serve_ranks(*group, {{"peer", "sherd"}}, [&](const std::string& request) { return run.answer(request); });
  return 0;
}

}  // namespace sherd::bench
