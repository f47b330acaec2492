#include "tools/bench/ghost_rank.h"

#include "runtime/comm/group/ghost_group.h"
#include "runtime/comm/job/world.h"
#include "tools/bench/training.h"

namespace sherd::bench {

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
