#include "nn/checkpoint/model_saves.h"

#include <set>
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
  save_checkpoint(dir, std::move(manifest), training_state(model, optimizer, options.scaler),
                  group_or_job(options.group), options.retention);
}

// Without an optimizer the rest of a save may be a training's.
void check_has_all(const ckpt::CheckpointReader& save, const std::vector<StateEntry>& entries) {
  std::set<std::pair<std::string, std::string>> wanted;
  for (const StateEntry& entry : entries)
    if (!entry.usually || save.contains(entry.kind, entry.name)) wanted.emplace(entry.kind, entry.name);
  save.require_exactly(wanted);
}

Loaded load_state(const std::string& dir, Module& model, Optimizer* optimizer, const LoadOptions& options) {
  const std::vector<StateEntry> entries = training_state(model, optimizer, options.scaler);
  const auto used = ckpt::use_newest_good(
      dir, group_or_job(options.group),
      [&](const ckpt::CheckpointReader& save) {
        if (optimizer != nullptr) check_has_all(save, entries);
        load_checkpoint(save, entries);
      },
      say_on_stderr);
  return {.step = used->manifest().step, .state = used->manifest().state};
}

}  // namespace

void save(const std::string& dir, Module& model, Optimizer& optimizer, const SaveOptions& options) {
  save_state(dir, model, &optimizer, options);
}
void save(const std::string& dir, Module& model, const SaveOptions& options) {
  save_state(dir, model, nullptr, options);
}
Loaded load(const std::string& dir, Module& model, Optimizer& optimizer, const LoadOptions& options) {
  return load_state(dir, model, &optimizer, options);
}
Loaded load(const std::string& dir, Module& model, const LoadOptions& options) {
  return load_state(dir, model, nullptr, options);
}

}  // namespace sherd::nn
