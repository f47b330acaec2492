// `--child guards --layers N`: a captured training step of mini with N blocks, each a unit of fully_shard, on one rank.
// A request is a number of samples; each is the mean of what finding that the recording fits takes, when nothing has
// changed since the last replay. seconds_to_look_at_all is what it takes otherwise.
#include <chrono>

#include "compile/compile.h"
#include "compile/run/guards.h"
#include "nn/optim/adamw.h"
#include "nn/parallel/shard/wrap/fully_shard.h"
#include "runtime/autograd/autograd.h"
#include "runtime/comm/job/world.h"
#include "runtime/exec/context.h"
#include "runtime/op/rows/ops.h"
#include "tools/bench/child.h"
#include "tools/bench/models.h"
#include "tools/train/flags.h"

namespace sherd::bench {

namespace {

class GuardsRun {
 public:
  explicit GuardsRun(const BenchModel& of) : model_(make_bench_model(of)) {
    const DeviceMesh mesh(world_group(), "dp");
    for (nn::Module* block : model_->blocks()) nn::fully_shard(*block, mesh);
    nn::fully_shard(*model_, mesh);
    model_->materialize(nn::Seed{1});
    optimizer_ = std::make_unique<nn::AdamW>(model_->parameters());
    arguments_ = {zeros({of.batch, of.tokens}, DType::i32), zeros({of.batch, of.tokens}, DType::i32)};
    while (step_.mode() != CompiledStep::Mode::replay) step_(arguments_);
    guards_ = std::make_unique<Guards>(*step_.graph());
    for (int i = 0; i < 2; ++i) {
      look();
      step_(arguments_);
      guards_->replayed();
    }
  }

  nlohmann::json answer(int samples) {
    std::vector<double> seconds, all;
    for (int i = 0; i < samples; ++i) {
      seconds.push_back(seconds_per_look(1000));
      RankContext::current().rank_register->note_change();  // so it looks at all until the next replay
      all.push_back(seconds_per_look(1));
      step_(arguments_);
      guards_->replayed();
    }
    return {{"seconds", seconds},
            {"seconds_to_look_at_all", all},
            {"slots", step_.graph()->program.slots.size()},
            {"looks", guards_->num_looks()}};
  }

 private:
  void look() {
    const std::string found = guards_->mismatch(arguments_);
    check(found.empty(), "the recording does not fit: {}", found);
  }
  double seconds_per_look(int count) {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < count; ++i) look();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() / count;
  }
  std::vector<Tensor> train(std::span<const Tensor> in) {
    const Tensor loss = (*model_)(in[0], in[1]);
    backward(loss);
    optimizer_->step_and_clear();
    return {loss.detach()};
  }

  std::unique_ptr<nn::LanguageModel> model_;
  std::unique_ptr<nn::AdamW> optimizer_;
  std::vector<Tensor> arguments_;
  CompiledStep step_{[this](std::span<const Tensor> in) { return train(in); }};
  std::unique_ptr<Guards> guards_;
};

}  // namespace

int run_guards_child(std::span<const std::string_view> args) {
  std::int64_t layers = 32;
  ConfigTable table;
  table.add("layers", &layers, "blocks of the model");
  apply_flags(table, parse_command_line(table, args));
  BenchModel model = bench_model("mini");
  model.layers = layers;
  model.batch = 1;
  GuardsRun run(model);
  serve({{"peer", "sherd"}}, [&](const std::string& request) { return run.answer(std::stoi(request)); });
  return 0;
}

}  // namespace sherd::bench
