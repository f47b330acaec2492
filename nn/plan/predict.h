#pragma once
// What a rank of a training will hold, before there is one: the program's own code on a ghost rank
// (runtime/memory/README.md), whose accounts are those of a rank that computes, to the byte.
//
//   nn::PlannedModel model;
//   model.make = [] { return std::make_unique<Net>(); };
//   model.batch = [](std::int64_t rows, Device d) { return std::vector{Tensor::empty({rows, 16}, DType::f32, d)}; };
//   model.loss = [](nn::Module& net, std::span<const Tensor> in) { return mean(static_cast<Net&>(net)(in[0])); };
//   predict({.recompute = "full"}, {.ranks = 8, .batch = 64}, model, 0).bytes
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "nn/plan/apply.h"
#include "runtime/comm/group/comm_counter.h"
#include "runtime/exec/memory_log.h"
#include "runtime/memory/accounting.h"

namespace sherd::nn {

/// What one rank holds, on the plan's device.
struct Prediction {
  CategoryBytes peak{};        ///< most of each category in any step or evaluation; their moments differ
  CategoryBytes at_peak{};     ///< at the moment of `bytes`
  CategoryBytes held{};        ///< between steps, once all state is there
  std::int64_t bytes = 0;      ///< most of all together, building and evaluation included: the least memory_limit
  std::string when{};          ///< where that is: "building the model", "step 1", "step 3", "evaluation"
  MemoryLog::Moment moment{};  ///< the module there, by its path, and the op
  std::vector<CommCounter::Entry> issued{};  ///< collectives of the last step
};

/// A training. Of a model as most programs train it, `make`, `batch` and `loss` are enough: apply(), materialize(),
/// apply_offload(), and for each step forward_backward(), unscaled where the plan scales losses, and
/// Optimizer::step_and_clear().
struct PlannedModel {
  using Step = std::function<std::vector<Tensor>(std::span<const Tensor>)>;

  /// A training loop of any form, once it is built.
  struct Loop {
    std::function<void(std::int64_t step)> update;  ///< the step of that number, counted from 0
    std::function<void()> evaluate{};               ///< once, after the steps; none where there is no evaluation
    const Module* model = nullptr;                  ///< whose parameters a log names
  };

  std::function<std::unique_ptr<Module>()> make{};
  /// A batch of so many rows. Nobody reads its values: Tensor::empty().
  std::function<std::vector<Tensor>(std::int64_t rows, Device device)> batch{};
  /// The 0-d mean loss of a batch.
  std::function<Tensor(Module& model, std::span<const Tensor> batch)> loss{};
  Plan styles{};  ///< where the mesh has tp
  /// AdamW where there is none.
  std::function<std::unique_ptr<Optimizer>(const std::vector<Parameter*>& parameters)> optimizer{};
  bool leaves_share_pass = false;  ///< as ForwardBackward's
  bool evaluates = false;          ///< forwards of micro-batches without a tape come after the steps, then a step
  /// Where the plan is compiled: a step that is captured and replayed, as by a shared CompiledStep.
  std::function<Step(Step)> capture{};
  /// In place of all of these, a loop that the program builds itself, with clipping or several losses: on the ghost,
  /// whose mesh this is. Memory that is there before the first step is taken here. predict() reads ranks and
  /// memory_limit of the facts then, and mesh, device and compiled of the plan.
  std::function<Loop(const JobMesh& mesh)> build{};
};

/// Looks at what the ghost has held: in the end, or as OutOfMemory is thrown; the training is there.
using LooksAtMemory = std::function<void(const MemoryLog& log)>;

/// Predicts what rank `rank` of facts.ranks holds that train facts.batch rows in a step as the plan says: it builds the
/// model, makes a first step and settled ones. Takes the time of the program without its kernels, and no memory of the
/// model's size; touches no device, communicates with nobody, and leaves the calling rank as it was. Weights that are
/// loaded, saves, and the scratch that kernels keep per thread are in no account. OutOfMemory, as training throws it,
/// over facts.memory_limit. Errors of apply(), of a rank that there is not, for facts without a batch, and for a
/// compiled plan without PlannedModel::capture.
Prediction predict(const TrainingPlan& plan, const PlanFacts& facts, const PlannedModel& model, int rank,
                   const LooksAtMemory& look = {});

}  // namespace sherd::nn
