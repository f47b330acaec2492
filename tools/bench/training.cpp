#include "tools/bench/training.h"

#include "nn/optim/clip.h"
#include "runtime/autograd/autograd.h"
#include "runtime/comm/group/agree.h"
#include "runtime/comm/group/ghost_group.h"
#include "runtime/comm/job/group_choice.h"
#include "runtime/comm/job/world.h"
#include "runtime/cpu/parallel.h"
#include "runtime/exec/context.h"
#include "runtime/op/rows/ops.h"
#include "tools/train/flags.h"

namespace sherd::bench {

TrainConfig train_config(const BenchModel& model, const nn::TrainingPlan& plan, int ranks) {
  TrainConfig config;
  config.seed = 1;
  config.plan = plan;
  config.plan.fully_shard = plan.param_dtype != DType::f32 || plan.strategy != nn::TrainingPlan().strategy ||
                            nn::count_data_ranks(plan.mesh.over(ranks)) > 1;
  config.plan.tensor_parallel.sequence_parallel = true;
  config.model = model;
  config.batch = model.batch * nn::count_data_ranks(plan.mesh.over(ranks));  // what each rank draws for itself
  config.optimizer = {.lr = 3e-4, .min_lr = 3e-4, .warmup = 0, .decay_matrices_only = false, .clip = 0};
  resolve(config);
  return config;
}

TrainStep train_step(const BenchModel& model, const nn::TrainingPlan& plan, const std::shared_ptr<ProcessGroup>& group,
                     const Links& link) {
  const TrainConfig config = train_config(model, plan, group->size());
  const nn::JobMesh mesh(config.plan.mesh, group);
  link.shape(mesh);
  return TrainStep(config, mesh, model.vocabulary, {.metrics = false});
}

BenchModel BenchRow::model() const {
  BenchModel model = bench_model(name);
  if (layers > 0) model.layers = layers;
  if (batch > 0) model.batch = batch;
  return model;
}

BenchRow take_row(std::span<const std::string_view> args, BenchRow row, Flags more) {
  nn::TrainingPlan& plan = row.plan;
  std::string dtype(name(plan.param_dtype)), device = to_string(plan.device);
  Flags flags = {{"model", &row.name},
                 {"layers", &row.layers},
                 {"batch", &row.batch},
                 {"tokens", &row.tokens},
                 {"steps", &row.steps},
                 {"threads", &row.threads},
                 {"dtype", &dtype},
                 {"device", &device},
                 {"captured", &plan.compiled},
                 {"prefetch", &plan.prefetch},
                 {"mesh", text_field(plan.mesh)},
                 {"strategy", text_field(plan.strategy)},
                 {"link", text_field(row.link)},
                 {"recompute", text_field(plan.recompute)},
                 {"budget", text_field(plan.memory_budget)},
                 {"tensor_parallel", &row.tensor_parallel}};
  flags.insert(flags.end(), more.begin(), more.end());
  take_flags(args, flags);
  plan.param_dtype = dtype_from_name(dtype);
  plan.device = parse_device(device);
  set_threads(static_cast<int>(row.threads));
  return row;
}

std::pair<BenchRow, std::shared_ptr<ProcessGroup>> take_row_of_ranks(std::span<const std::string_view> args,
                                                                     int pinned_from, BenchRow defaults, Flags more) {
  GroupChoice choice = "auto";
  more.emplace_back("group", text_field(choice));
  std::shared_ptr<ProcessGroup> host = pinned_group(pinned_from);  // before there are other threads
  BenchRow row = take_row(args, std::move(defaults), std::move(more));
  together(*host, [&] { row.plan.device = open_device(row.plan.device, *host); });
  std::shared_ptr<ProcessGroup> group = chosen_group(std::move(host), row.plan.device, choice).group;
  return {std::move(row), std::move(group)};
}

BenchRow::Batch random_batch(const BenchRow& row, int rank) {
  const BenchModel model = row.model();
  const std::int64_t batch = row.batch ? row.batch : model.batch, tokens = row.tokens ? row.tokens : model.sequence;
  const std::uint64_t key = random_key(2, "tokens", "data", static_cast<std::uint64_t>(rank));
  const Tensor text =
      cast(random_uniform({batch, tokens + 1}, key, 0, static_cast<double>(model.vocabulary)), DType::i32);
  return {to(contiguous(narrow(text, 1, 0, tokens)), row.plan.device),
          to(contiguous(narrow(text, 1, 1, tokens)), row.plan.device)};
}

nlohmann::json greeting_of(const BenchRow& row) {
  nlohmann::json greeting = sherd_greeting();
  if (row.plan.device != Device::cpu()) greeting["device"] = RankContext::current().device(row.plan.device).describe();
  return greeting;
}

void PlainLoop::draw() {
  model->materialize(nn::Seed{1});
  optimizer = std::make_unique<nn::AdamW>(model->parameters());
}

Tensor PlainLoop::step(std::span<const Tensor> in) const {
  const Tensor loss = (*model)(in[0], in[1]);
  backward(loss);
  if (clips) nn::clip_grad_norm(*optimizer, 1);
  optimizer->step_and_clear();
  return loss.detach();
}

namespace {

TrainStep ghost_step(const BenchModel& model, const std::string& mesh, int rank) {
  const int ranks = ranks_of_mesh(mesh);
  set_world_group(make_ghost_group(rank, ranks));
  TrainConfig config = train_config(model, {.mesh = mesh, .param_dtype = DType::bf16}, ranks);
  config.optimizer.clip = 1;
  return TrainStep(config, nn::JobMesh(config.plan.mesh, world_group()), model.vocabulary);
}

}  // namespace

int ranks_of_mesh(const std::string& mesh) { return static_cast<int>(nn::MeshAxes(mesh).count(1)); }

GhostRank::GhostRank(const BenchModel& model, const std::string& mesh, int rank)
    : scope_(fmt::format("rank {}", rank), {.ghost = true}),
      step_(ghost_step(model, mesh, rank)),
      tokens_(Tensor::empty({model.batch, model.sequence}, DType::i32)) {}

void GhostRank::step() {
  step_.set_step(next_++);
  step_.update(tokens_, tokens_);
}

}  // namespace sherd::bench
