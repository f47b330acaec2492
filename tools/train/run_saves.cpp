#include "tools/train/run_saves.h"

#include <filesystem>
#include <ratio>
#include <utility>

#include <unistd.h>

#include "nn/checkpoint/format/saves.h"
#include "runtime/comm/group/agree.h"
#include "runtime/comm/group/host_group.h"
#include "runtime/comm/hosts/store_group.h"
#include "runtime/comm/job/rank.h"
#include "runtime/comm/store/hmac.h"
#include "runtime/exec/step_clock.h"
#include "tools/train/exit_status.h"
#include "tools/train/output_file.h"
#include "tools/train/restart.h"

namespace sherd::train {

namespace {

using SecondsAgo = std::chrono::duration<double>;

std::string owner_text(const std::string& run) { return fmt::format("run {} (process {})", run, ::getpid()); }

}  // namespace

RunSaves::RunSaves(const TrainConfig& config, ProcessGroup& group) : config_(config), group_(group) {
  retention_.keep = static_cast<int>(config.keep);
  retention_.keep_every = config.keep_every;
}

void RunSaves::claim(const ckpt::CheckpointReader* resumed) {
  namespace fs = std::filesystem;
  if (resumed != nullptr) names_.run = resumed->manifest().run;
  if (names_.run.empty()) names_.run = random_hex(16);
  if (const RankInfo rank = discover_rank(); rank.source == "sherd run") names_.job = rank.job;
  lock_.emplace(config_.save, owner_text(names_.run));
  names_.folder = lock_->identity();
  const std::vector<ckpt::SavePlace> saves = ckpt::list_saves(config_.save);
  if (saves.empty()) return;
  std::error_code ignored;
  const bool goes_on_here =
      resumed != nullptr && (fs::equivalent(resumed->dir(), config_.save, ignored) ||
                             fs::equivalent(fs::path(resumed->dir()) / "..", config_.save, ignored));
  retention_.replace = config_.overwrite && !goes_on_here;
  if (config_.overwrite) return;
  const std::string holds =
      fmt::format("\"{}\" holds the saves of a run, the newest of step {}", config_.save, saves.front().step);
  check_usage(goes_on_here, "{}. Go on with it by --resume {}, replace it by --overwrite, or save to another folder",
              holds, config_.save);
  // Newer ones that were passed over are damaged.
  check_usage(fs::equivalent(config_.resume, config_.save, ignored) || saves.front().folder == resumed->dir() ||
                  fs::equivalent(saves.front().folder, resumed->dir(), ignored),
              "{}; this run goes back to step {}. Drop the later ones by --overwrite, or save to another folder", holds,
              resumed->manifest().step);
}

void RunSaves::claim_after_another_rank() {
  when_free<Error>(std::chrono::seconds(10), [&] { lock_.emplace(config_.save, owner_text(names_.run)); });
}

void RunSaves::check_all_see_it() {
  if (group_.host().kind() != kStoreGroupKind) return;
  const std::string holder = gather_text(group_, lock_ ? owner_text(names_.run) : "")[0];
  constexpr std::chrono::seconds kNamesAreOld{5};  // a network file system may show them for a while
  together(group_,
           [&] { when_free<Error>(kNamesAreOld, [&] { ckpt::FolderLock::check_sees(config_.save, holder); }); });
}

void RunSaves::share_names() {
  RunRecord record;
  note(record);
  take_over(run_record_from_text(gather_text(group_, to_text(record))[0]));
}

void RunSaves::take_over(const RunRecord& record) {
  names_ = record.saves;
  retention_.replace = record.replaces_saves;
  saved_at_ = std::chrono::steady_clock::now() -
              std::chrono::duration_cast<std::chrono::steady_clock::duration>(SecondsAgo(record.seconds_since_save));
}

void RunSaves::note(RunRecord& record) const {
  record.saves = names_;
  record.replaces_saves = retention_.replace;
  record.seconds_since_save = SecondsAgo(std::chrono::steady_clock::now() - saved_at_).count();
}

void RunSaves::prepare(const std::vector<nn::StateEntry>& state) {
  saver_.emplace(group_);
  saver_->reserve(state);
}

void RunSaves::save(ckpt::Manifest manifest, const std::vector<nn::StateEntry>& state) {
  finish();
  together(group_, [&] {
    if (lock_) lock_->check_is_still(names_.folder);
  });
  manifest.run = names_.run;
  if (!names_.job.empty()) manifest.state[kJobOfSave] = names_.job;
  if (saver_) saver_->start(config_.save, std::move(manifest), state, retention_);
  else nn::save_checkpoint(config_.save, std::move(manifest), state, group_, retention_);
  retention_.replace = false;
  tell_launcher();
  begin_clock();
}

void RunSaves::poll() {
  if (!saver_) return;
  const StepClock::Scope part(step_clock(), StepPart::save);
  const std::int64_t before = saver_->counts().saves;
  saver_->poll();
  if (saver_->counts().saves > before) tell_launcher();
}

void RunSaves::finish() {
  if (!saver_) return;
  const StepClock::Scope part(step_clock(), StepPart::save);
  saver_->finish();
  tell_launcher();
}

// So that a later start of this job knows that something is gone if it finds nothing.
void RunSaves::tell_launcher() {
  const bool has_saved = !saver_ || saver_->counts().saves > 0;
  if (group_.rank() == 0 && !names_.job.empty() && has_saved && !has_told_)
    has_told_ = tell_launcher_of_saves(config_.save);
}

bool RunSaves::is_time() const {
  const std::chrono::duration<double, std::ratio<60>> since = std::chrono::steady_clock::now() - saved_at_;
  return since.count() >= config_.save_minutes;
}

bool RunSaves::lacks(std::int64_t step) const {
  const std::vector<ckpt::SavePlace> saves = ckpt::list_saves(config_.save);
  return retention_.replace || saves.empty() || saves.front().step != step;
}

}  // namespace sherd::train
