#include "nn/checkpoint/load/newest_good.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "nn/checkpoint/format/saves.h"
#include "runtime/comm/group/agree.h"
#include "runtime/exec/context.h"
#include "runtime/exec/purpose.h"
#include "runtime/tensor/indices.h"

namespace sherd::ckpt {

namespace {

/// The folders of the saves that rank 0 sees: another rank may look while a run saves there. A ghost rank, which has no
/// rank 0 beside it, looks itself.
std::vector<std::string> saves_of_rank_zero(const std::string& path, ProcessGroup& group) {
  std::string text;
  together(group, [&] {
    if (group.rank() != 0 && !RankContext::current().is_ghost()) return;
    for (const SavePlace& save : list_saves(path)) text += save.folder + '\0';
    check(!text.empty(),
          "no checkpoint: \"{}\" holds neither manifest.json nor a folder step-... with one; name a folder that a run "
          "saved to",
          path);
  });
  text = gather_text(group, text)[0];
  std::vector<std::string> folders;
  for (std::size_t begin = 0, end; (end = text.find('\0', begin)) != text.npos; begin = end + 1)
    folders.push_back(text.substr(begin, end - begin));
  return folders;
}

constexpr char kDamaged = 'd', kWrong = 'w';

/// How opening or using a save ended here: empty if well, else one of the signs above and the reason. What cannot be
/// opened is damaged, unless it is of a newer version.
std::string end_of(const std::function<void()>& work, bool opens) {
  try {
    work();
  } catch (const NewerVersion& error) { return kWrong + std::string(error.what()); } catch (const DamagedSave& error) {
    return kDamaged + std::string(error.what());
  } catch (const Error& error) {
    return (opens ? kDamaged : kWrong) + std::string(error.what());
  } catch (const std::exception& error) { return kWrong + std::string(error.what()); }
  return {};
}

/// The first end of that kind, with the rank's name where it is another's; empty if no rank ended so.
std::string first_of(const std::vector<std::string>& ends, char kind, int self) {
  const std::string& own = ends[static_cast<std::size_t>(self)];
  if (own.starts_with(kind)) return own.substr(1);
  for (const std::size_t rank : indices(ends))
    if (ends[rank].starts_with(kind)) return fmt::format("rank {}: {}", rank, ends[rank].substr(1));
  return {};
}

/// What is damaged, on any rank, when all have come to their end. Throws Error, on every rank, for what is wrong.
std::string damage_of(ProcessGroup& group, const std::string& own_end) {
  const std::vector<std::string> ends = gather_text(group, own_end);
  if (const std::string wrong = first_of(ends, kWrong, group.rank()); !wrong.empty()) throw Error(wrong);
  return first_of(ends, kDamaged, group.rank());
}

}  // namespace

std::unique_ptr<CheckpointReader> use_newest_good(const std::string& path, ProcessGroup& group, const SaveUse& use,
                                                  const SayWhy& say, std::unique_ptr<CheckpointReader> opened) {
  const PurposeScope purpose("use_newest_good");
  std::vector<std::string> folders = saves_of_rank_zero(path, group);
  if (opened) {
    const auto own = std::find(folders.begin(), folders.end(), opened->dir());
    folders.erase(folders.begin(), own == folders.end() ? folders.begin() : own);
  }
  if (!opened && group.rank() == 0)
    for (const std::string& link : links_newer_than_saves(path))
      say(fmt::format(
          "\"{}\" is a link and passed over: a save is a folder; to go on from what is behind it, name that", link));
  std::string reasons;
  for (const std::string& folder : folders) {
    std::unique_ptr<CheckpointReader> reader;
    const auto open = [&] {
      reader = opened && opened->dir() == folder ? std::move(opened) : std::make_unique<CheckpointReader>(folder);
    };
    std::string damage = damage_of(group, end_of(open, true));
    // A use may communicate, so it begins where all ranks can.
    if (damage.empty()) damage = damage_of(group, end_of([&] { use(*reader); }, false));
    if (damage.empty()) {
      if (!reasons.empty() && group.rank() == 0) say(fmt::format("going on with \"{}\": {}", folder, reasons));
      return reader;
    }
    reasons += (reasons.empty() ? "" : "; ") + damage;
  }
  throw Error(reasons);
}

std::unique_ptr<CheckpointReader> open_newest_good(const std::string& path, ProcessGroup& group, Verify verify,
                                                   const SayWhy& say) {
  const PurposeScope purpose("open_newest_good");
  return use_newest_good(
      path, group,
      [&](const CheckpointReader& save) {
        if (verify == Verify::bytes) save.verify({group.rank(), group.size()});
      },
      say);
}

}  // namespace sherd::ckpt
