// `sherd ckpt ls|show|verify|diff|hash|convert`: what lies in folders of saves, without a model and without a GPU.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <vector>

#include <unistd.h>

#include <nlohmann/json.hpp>

#include "nn/checkpoint/format/folder_lock.h"
#include "nn/checkpoint/full/compare.h"
#include "nn/checkpoint/full/state_hash.h"
#include "nn/checkpoint/training_state.h"
#include "nn/interop/huggingface_config.h"
#include "runtime/comm/group/process_group.h"
#include "runtime/memory/accounting.h"
#include "tools/cli/ckpt_show.h"
#include "tools/cli/command.h"
#include "tools/train/exit_status.h"
#include "tools/train/flags.h"
#include "tools/train/weights.h"

namespace sherd {

namespace {

using nlohmann::ordered_json;
using Words = std::vector<std::string>;

void print(const std::string& text) { std::fputs(text.c_str(), stdout); }

/// A save as `ls` sees it: what its manifest says, or why that cannot be read.
struct Listed {
  ckpt::SavePlace place;
  ckpt::Manifest manifest;
  std::string damage;
  std::int64_t bytes = 0;
  std::int64_t age_seconds = 0;
};

Listed list(const ckpt::SavePlace& place) {
  Listed save;
  save.place = place;
  save.age_seconds = age_of_save(place.folder);
  try {
    const ckpt::CheckpointReader reader(place.folder);  // its files are there, in full
    save.manifest = reader.manifest();
  } catch (const Error& error) { save.damage = error.message(); }
  for (const ckpt::PieceEntry& piece : save.manifest.pieces) save.bytes += piece.bytes;
  return save;
}

std::vector<ckpt::SavePlace> saves_at(const std::string& path) {
  std::vector<ckpt::SavePlace> saves = ckpt::list_saves(path);
  if (saves.empty()) (void)ckpt::newest_save(path);  // says what is missing
  return saves;
}

int run_ls(const Words& words, bool json) {
  int status = kDone;
  ordered_json all = ordered_json::array();
  if (!json)
    print(fmt::format("{:>10}  {:>5}  {:>10}  {:>8}  {:<12}  {}\n", "step", "ranks", "bytes", "age", "run", "folder"));
  for (const ckpt::SavePlace& place : saves_at(words[0])) {
    const Listed save = list(place);
    if (!save.damage.empty()) status = kFailed;
    if (json) {
      all.push_back({{"folder", place.folder}, {"step", place.step}, {"age_seconds", save.age_seconds}});
      if (save.damage.empty())
        all.back().update({{"ranks", save.manifest.world_size}, {"bytes", save.bytes}, {"run", save.manifest.run}});
      else all.back()["damage"] = save.damage;
    } else if (save.damage.empty()) {
      print(fmt::format("{:>10}  {:>5}  {:>10}  {:>8}  {:<12}  {}\n", place.step, save.manifest.world_size,
                        format_bytes(save.bytes), age_text(save.age_seconds), save.manifest.run.substr(0, 12),
                        place.folder));
    } else {
      print(fmt::format("{:>10}  damaged: {}\n", place.step, save.damage));
    }
  }
  if (json) print(all.dump(2) + "\n");
  return status;
}

int run_show(const Words& words, bool json) {
  const ckpt::CheckpointReader save(words[0]);
  print(json ? save_json(save) : save_page(save));
  return kDone;
}

int run_verify(const Words& words, bool) {
  int status = kDone;
  for (const ckpt::SavePlace& place : saves_at(words[0])) {
    std::vector<std::string> damage;
    try {
      damage = ckpt::CheckpointReader(place.folder).find_damage();
    } catch (const Error& error) { damage.push_back(error.message()); }
    if (damage.empty()) print(fmt::format("{}: good\n", place.folder));
    else status = kFailed;
    for (const std::string& block : damage) print(fmt::format("{}: damaged: {}\n", place.folder, block));
  }
  return status;
}

std::string difference_text(const ckpt::TensorDifference& d) {
  const std::string tensor = fmt::format("{} {}", d.kind, d.name);
  switch (d.likeness) {
    case ckpt::Likeness::equal: return fmt::format("{}: equal, {}", tensor, d.forms);
    case ckpt::Likeness::values:
      return fmt::format("{}: {} of {} elements differ, by {:.6g} at most", tensor, d.different, d.elements, d.largest);
    case ckpt::Likeness::form: return fmt::format("{}: {}", tensor, d.forms);
    case ckpt::Likeness::only_first: return fmt::format("{}: only in the first, {}", tensor, d.forms);
    case ckpt::Likeness::only_second: return fmt::format("{}: only in the second, {}", tensor, d.forms);
  }
  return tensor;
}

int run_diff(const Words& words, bool json) {
  const ckpt::CheckpointReader first(words[0]), second(words[1]);
  std::int64_t equal = 0, all = 0;
  ordered_json list = ordered_json::array();
  ckpt::compare_saves(first, second, [&](const ckpt::TensorDifference& d) {
    ++all;
    if (d.likeness == ckpt::Likeness::equal) ++equal;
    if (json)
      list.push_back({{"kind", d.kind},
                      {"name", d.name},
                      {"equal", d.likeness == ckpt::Likeness::equal},
                      {"different", d.different},
                      {"largest", d.largest},
                      {"forms", d.forms}});
    else if (d.likeness != ckpt::Likeness::equal) print(difference_text(d) + "\n");
  });
  if (json) print(list.dump(2) + "\n");
  else
    print(fmt::format("{} of {} tensors are equal (steps {} and {})\n", equal, all, first.manifest().step,
                      second.manifest().step));
  return equal == all ? kDone : kFailed;
}

int run_hash(const Words& words, bool) {
  const ckpt::CheckpointReader save(words[0]);
  print(fmt::format("{}  step {} of {}\n", ckpt::hash_save(save), save.manifest().step, save.dir()));
  return kDone;
}

// A checkpoint becomes a Hugging Face directory, and the other way round a save without optimizer state, for eval and
// --init-from. Only a model of 256 tokens is taken to know bytes: what other tokens stand for is not told here.
int run_convert(const Words& words, bool) {
  if (!ckpt::list_saves(words[0]).empty()) return run_export(std::vector<std::string_view>{words[0], words[1]});
  check_one_rank("sherd ckpt convert");
  const Weights weights(words[0]);
  const ckpt::FolderLock lock(words[1], fmt::format("sherd ckpt convert (process {})", ::getpid()));
  check(ckpt::list_saves(words[1]).empty(), "\"{}\" holds saves already; convert into another folder", words[1]);
  const auto model = weights.make_loaded();
  TrainConfig config;
  config.model = weights.model();
  resolve(config);
  ckpt::Manifest manifest;
  manifest.config = to_toml(config);
  if (const Vocabulary bytes = Vocabulary::bytes(); config.model.vocabulary == bytes.size())
    manifest.vocabulary = bytes.to_text();
  nn::save_checkpoint(words[1], std::move(manifest), nn::training_state(*model), *make_single_group());
  fmt::print("wrote {}: a save of {}, {} parameters\n", words[1], nn::huggingface_architecture(weights.config()),
             model->num_parameters());
  return kDone;
}

struct Action {
  std::string_view name, usage;
  std::size_t words;
  int (*run)(const Words& words, bool json);
  bool has_json = false;
};
constexpr Action kActions[] = {
    {"ls", "ls DIR: steps, ranks, sizes, ages and runs of the saves, and which are damaged", 1, run_ls, true},
    {"show",
     "show DIR: a page about the newest save, or DIR/step-000120: run, model, mesh, sizes; all of it with --json", 1,
     run_show, true},
    {"verify", "verify DIR: reads every byte of every save and names the blocks whose checksums differ", 1, run_verify},
    {"diff", "diff DIR DIR: which tensors of two saves differ, and by how much", 2, run_diff, true},
    {"hash", "hash DIR: one number for all tensors of the newest save, whatever ranks wrote it", 1, run_hash},
    {"convert", "convert FROM TO: a checkpoint to a Hugging Face directory, or back", 2, run_convert},
};

std::string usage() {
  std::string text = "sherd ckpt ACTION DIR [--json]: looks into folders of saves\n";
  for (const Action& action : kActions) text += fmt::format("\n  sherd ckpt {}", action.usage);
  return text + "\n\nThe exit status is 1 where a save is damaged, or where two differ.";
}

const Action& find_action(const std::string& name) {
  const Action* const found = std::ranges::find(kActions, name, &Action::name);
  check_usage(found != std::end(kActions),
              "sherd ckpt: unknown action \"{}\"{}; the actions are ls, show, verify, diff, convert", name,
              did_you_mean(name, kActions));
  return *found;
}

}  // namespace

int run_ckpt(std::span<const std::string_view> args) {
  bool json = false;
  ConfigTable table;
  table.add("json", &json, "print JSON: of ls, show and diff");
  auto words = read_command_line(table, args, usage());
  if (!words) return kDone;
  check_usage(!words->empty(), "sherd ckpt: the action is missing: ls, show, verify, diff, hash or convert");
  const Action& action = find_action(words->front());
  words->erase(words->begin());
  check_usage(words->size() == action.words, "usage: sherd ckpt {}; got {} words", action.usage, words->size());
  check_usage(!json || action.has_json, "sherd ckpt {} prints no JSON: leave --json out, and look at the exit status",
              action.name);
  return action.run(*words, json);
}

}  // namespace sherd
