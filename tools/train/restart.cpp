#include "tools/train/restart.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <memory>
#include <optional>
#include <tuple>
#include <vector>

#include "nn/checkpoint/format/manifest.h"
#include "nn/checkpoint/format/saves.h"

namespace sherd::train {

namespace {

using Axes = std::vector<DeviceMesh::Axis>;

/// `place` if its newest readable save is of the job, else the newest one that is; empty if none. A save that cannot be
/// read is no reason to fail as long as another one can: who resumes passes it over, and says so. `unread`, if it is
/// empty, becomes why the first such save cannot be read.
std::string saves_of(const std::string& place, const std::string& job, std::string& unread) {
  bool is_newest = true;
  for (const ckpt::SavePlace& save : ckpt::list_saves(place)) {
    try {
      const ckpt::Manifest manifest = ckpt::read_manifest(save.folder);
      const auto found = manifest.state.find(kJobOfSave);
      if (found != manifest.state.end() && found->second == ckpt::StateValue(job))
        return is_newest ? place : save.folder;
      is_newest = false;
    } catch (const Error& error) {
      if (unread.empty()) unread = error.message();
    }
  }
  return "";
}

/// Calls `visit` with every mesh of these axes that is nowhere larger.
template <class Visit>
void each_smaller(const Axes& full, Axes& axes, std::size_t at, const Visit& visit) {
  if (at == full.size()) return visit(axes);
  for (int size = 1; size <= full[at].size; ++size) {
    if (full[at].name == "tp" && full[at].size % size != 0) continue;
    axes[at].size = size;
    each_smaller(full, axes, at + 1, visit);
  }
}

/// Empty where there is no present folder.
std::string full_name(const std::string& folder) {
  std::error_code ignored;
  return std::filesystem::absolute(folder, ignored).lexically_normal().string();
}

}  // namespace

bool tell_launcher_of_saves(const std::string& folder) {
  try {
    const std::unique_ptr<Store> store = connect_store(discover_rank(), std::chrono::seconds(1));
    store->set(kSavesOfJob, full_name(folder));
    return true;
  } catch (const std::exception&) { return false; }
}

std::string saves_of_earlier_start(const TrainConfig& config, const RankInfo& rank) {
  if (rank.restart == 0 || rank.job.empty()) return "";
  const std::string above = std::filesystem::path(config.resume).parent_path();
  std::string unread, ignored;
  for (const std::string& place : {config.save, config.resume, above}) {
    const bool may_replace = place == config.save;
    std::string saves = place.empty() ? "" : saves_of(place, rank.job, may_replace ? unread : ignored);
    if (!saves.empty()) return saves;
  }
  // One launch may train several times, each into a folder of its own.
  if (config.save.empty() || rank.saves != full_name(config.save)) return "";
  check(unread.empty(),
        "restart {}: no save of this job can be read, and to begin anew could replace what it has saved: {}; when that "
        "can be read again, go on by --resume DIR, without --overwrite",
        rank.restart, unread);
  fail(
      "restart {}: an earlier start of this job has saved to \"{}\", and no save of it is there now: its disk may be "
      "gone; mount it, then go on by --resume {}. To begin anew, start a new job",
      rank.restart, rank.saves, rank.saves);
}

RanksThatFit ranks_that_fit(const TrainConfig& config, const RankInfo& rank) {
  if (rank.world_size >= rank.full_world_size) return {rank.world_size, config.plan.mesh, ""};
  const Axes full = config.plan.mesh.over(rank.full_world_size);
  Axes axes = full;
  std::optional<nn::MeshAxes> best;
  const auto worth = [](const nn::MeshAxes& mesh) {
    return std::tuple(mesh.count(1), std::max(mesh.size("tp"), 1), -std::max(mesh.size("replicate"), 1));
  };
  const int slices = config.plan.reshard_after_forward.ranks().value_or(1);
  each_smaller(full, axes, 0, [&](const Axes& smaller) {
    const nn::MeshAxes mesh(smaller);
    const bool divides = mesh.size("dp") % slices == 0 && mesh.count(1) <= rank.world_size &&
                         nn::divides(config.plan, config.batch, nn::count_data_ranks(smaller));
    if (divides && (!best || worth(mesh) > worth(*best))) best = mesh;
  });
  check(
      best.has_value(),
      "no mesh of at most {} ranks divides batch = {} into accumulate = {} micro-batches, or leaves, and is divided by "
      "reshard_after_forward",
      rank.world_size, config.batch, config.plan.micro_batches);
  RanksThatFit fit{static_cast<int>(best->count(1)), config.plan.mesh.is_open() ? nn::MeshAxes() : *best, ""};
  fit.text = fmt::format("{} of the {} ranks of the first start are left: trains on {} of them, {}", rank.world_size,
                         rank.full_world_size, fit.ranks, best->text());
  return fit;
}

}  // namespace sherd::train
