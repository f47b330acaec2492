// `--child program --layers N --batch B`: records a training step of mini with N blocks, with clipping and AdamW. A
// request is a number of calls; each sample is what verify() of the program that runs and its meaning take together, or
// with `--times passes` what run_passes() takes on the recorded one. Answers also say how many operations its nodes
// are.
#include <chrono>
#include <functional>

#include "compile/capture/capture.h"
#include "compile/ir/analysis/meaning.h"
#include "compile/ir/builder.h"
#include "compile/ir/verify.h"
#include "compile/passes/pass.h"
#include "nn/optim/adamw.h"
#include "nn/optim/clip.h"
#include "runtime/autograd/autograd.h"
#include "runtime/op/core/dims.h"
#include "runtime/op/rows/ops.h"
#include "tools/bench/child.h"
#include "tools/bench/models.h"
#include "tools/train/flags.h"

namespace sherd::bench {

namespace {

using Clock = std::chrono::steady_clock;

Program record_step(const BenchModel& of) {
  const auto model = make_bench_model(of);
  model->materialize(nn::Seed{1});
  nn::AdamW optimizer(model->parameters());
  const Tensor text = cast(
      random_uniform({of.batch, of.tokens + 1}, random_key(2, "tokens", "data"), 0, static_cast<double>(of.vocabulary)),
      DType::i32);
  const Tensor in[] = {contiguous(narrow(text, 1, 0, of.tokens)), contiguous(narrow(text, 1, 1, of.tokens))};
  const auto step = [&] {
    const Tensor loss = (*model)(in[0], in[1]);
    backward(loss);
    nn::clip_grad_norm(optimizer, 1);
    optimizer.step_and_clear();
    return loss.detach();
  };
  step();  // lazy state settles
  Recorder recorder(in);
  const Tensor loss = step();
  return recorder.finish({&loss, 1}).program;
}

// Operations of all nodes, by their rows.
double flops_of(const Program& program) {
  double flops = 0;
  for (const GraphNode& node : program.nodes) {
    std::vector<TensorMeta> out;
    for (const TensorRef& ref : node.out)
      if (ref.defined()) out.emplace_back(ref.shape, ref.dtype);
    flops += op_cost(*node.op, metas_of(program, node), node.attrs, out).flops;
  }
  return flops;
}

double seconds_to(const std::function<void()>& work) {
  const Clock::time_point start = Clock::now();
  work();
  return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace

int run_program_child(std::span<const std::string_view> args) {
  std::int64_t layers = 32, batch = 2;
  std::string times = "verify";
  ConfigTable table;
  table.add("layers", &layers, "blocks of the model");
  table.add("batch", &batch, "sequences of a step");
  table.add("times", &times, "verify or passes");
  apply_flags(table, parse_command_line(table, args));
  BenchModel model = bench_model("mini");
  model.layers = layers;
  model.batch = batch;
  const Program recorded = record_step(model);
  Program program = recorded;
  const std::vector<Pass> passes = standard_passes();
  run_passes(program, passes);
  const double flops = flops_of(program), formula_flops = model.step_flops();
  serve({{"peer", "sherd"}, {"nodes", program.nodes.size()}}, [&](const std::string& request) -> nlohmann::json {
    std::vector<double> seconds;
    for (int i = 0, count = std::stoi(request); i < count; ++i) {
      if (times == "passes") program = recorded;
      seconds.push_back(seconds_to([&] {
        if (times == "passes") return run_passes(program, passes);
        verify(program);
        const Meanings meanings(program);
      }));
    }
    return {{"seconds", seconds}, {"nodes", program.nodes.size()}, {"flops", flops}, {"formula_flops", formula_flops}};
  });
  return 0;
}

}  // namespace sherd::bench
