#include "tools/train/ghost_step.h"

#include "tools/train/ghost_training.h"

namespace sherd::train {

namespace {

/// What the group of all ranks is called: on a mesh of one axis by that.
std::string world_label(const TrainConfig& config, int ranks) {
  std::vector<DeviceMesh::Axis> axes = config.plan.mesh.of(ranks);
  std::erase_if(axes, [](const DeviceMesh::Axis& axis) { return axis.size == 1; });
  return axes.size() == 1 ? axes[0].name : "world";
}

}  // namespace

GhostStep ghost_step(const TrainConfig& config, int rank, int ranks, std::int64_t data_vocabulary) {
  GhostStep result;
  // A captured step is recorded in the second update, so its replay is the third; an eager one is settled in the
  // second.
  const int settled = config.plan.compiled ? 3 : 2;
  const TimelineRecording::Site site{rank, ranks, config.plan.device, world_label(config, ranks)};
  result.memory = predict_peak(config, rank, ranks, data_vocabulary,
                               {.evaluates = false, .record = {{&result.timeline, settled, site}}});
  return result;
}

}  // namespace sherd::train
