#include "nn/checkpoint/model_saves.h"

#include <utility>
#include <vector>

#include "runtime/comm/job/world.h"

namespace sherd::nn {

namespace {

ProcessGroup& group_or_job(const std::shared_ptr<ProcessGroup>& group) { return group ? *group : *world_group(); }

void save_state(const std::string& dir, Module& model, Optimizer* optimizer, const SaveOptions& options) {
  ckpt::Manifest manifest;
  manifest.step = options.step;
  manifest.state = options.state;
  manifest.plan = options.plan;
  save_checkpoint(dir, std::move(manifest), training_state(model, optimizer, options.scaler),
                  group_or_job(options.group), options.retention);
}

ckpt::Manifest load_state(const std::string& dir, Module& model, Optimizer* optimizer, const LoadOptions& options) {
  const std::vector<StateEntry> entries = training_state(model, optimizer, options.scaler);
  const auto used = ckpt::use_newest_good(
      dir, group_or_job(options.group),
      [&](const ckpt::CheckpointReader& save) {
        if (optimizer != nullptr) require_exactly(save, entries);  // else the rest may be a training's
        load_checkpoint(save, entries);
      },
      say_on_stderr);
  return used->manifest();
}

}  // namespace

void save(const std::string& dir, Module& model, Optimizer& optimizer, const SaveOptions& options) {
  save_state(dir, model, &optimizer, options);
}
void save(const std::string& dir, Module& model, const SaveOptions& options) {
  save_state(dir, model, nullptr, options);
}
bool has_saves(const std::string& dir) { return !ckpt::list_saves(dir).empty(); }
ckpt::Manifest load(const std::string& dir, Module& model, Optimizer& optimizer, const LoadOptions& options) {
  return load_state(dir, model, &optimizer, options);
}
ckpt::Manifest load(const std::string& dir, Module& model, const LoadOptions& options) {
  return load_state(dir, model, nullptr, options);
}

}  // namespace sherd::nn
