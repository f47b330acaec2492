#include "tools/cli/ckpt_show.h"

#include <algorithm>
#include <cctype>
#include <ctime>
#include <map>
#include <ranges>
#include <set>
#include <utility>
#include <vector>

#include <sys/stat.h>

#include <nlohmann/json.hpp>

#include "nn/checkpoint/full/state_hash.h"
#include "nn/data/vocabulary.h"
#include "runtime/memory/accounting.h"
#include "tools/train/config.h"

namespace sherd {

using namespace train;

namespace {

using nlohmann::ordered_json;

/// One tensor, whoever holds its pieces.
struct SavedTensor {
  ckpt::PieceEntry first;  // dtype and shape are those of all
  int pieces = 0;
  std::int64_t bytes = 0;
};
/// By kind and name.
using SavedTensors = std::map<std::pair<std::string, std::string>, SavedTensor>;

SavedTensors tensors_of(const ckpt::Manifest& manifest) {
  SavedTensors tensors;
  for (const ckpt::PieceEntry& piece : manifest.pieces) {
    SavedTensor& tensor = tensors[{piece.kind, piece.name}];
    if (tensor.pieces++ == 0) tensor.first = piece;
    tensor.bytes += piece.bytes;
  }
  return tensors;
}

std::int64_t elements_of(const SavedTensor& tensor) {
  std::int64_t count = 1;
  for (const std::int64_t size : tensor.first.shape) count *= size;
  return count;
}

/// Tensors that are counted together.
struct Sum {
  std::set<std::string> dtypes;
  std::int64_t tensors = 0, elements = 0, bytes = 0;
  void add(const SavedTensor& tensor) {
    dtypes.insert(std::string(name(tensor.first.dtype)));
    ++tensors;
    elements += elements_of(tensor);
    bytes += tensor.bytes;
  }
};

/// "blocks.3.attn.wq.weight" as "blocks.*.attn.wq.weight".
std::string without_numbers(const std::string& name) {
  std::vector<std::string> parts;
  for (const auto part : std::views::split(name, '.')) {
    const bool is_number = !part.empty() && std::ranges::all_of(part, [](unsigned char c) { return std::isdigit(c); });
    parts.push_back(is_number ? "*" : std::string(part.begin(), part.end()));
  }
  return fmt::format("{}", fmt::join(parts, "."));
}

std::string line(std::string_view what, const std::string& text) { return fmt::format("{:<10}{}\n", what, text); }

std::string model_text(const TrainConfig::Model& m, std::int64_t parameters) {
  const std::string kv = m.kv_heads == m.heads ? "" : fmt::format(" ({} of keys and values)", m.kv_heads);
  return fmt::format("{}: {} layers, {} heads{}, width {}, hidden {}, sequence {}; {} parameters", m.style, m.layers,
                     m.heads, kv, m.width, m.hidden, m.sequence, parameters);
}

std::string training_text(const TrainConfig& c) {
  const TrainConfig::Optimizer& o = c.optimizer;
  return fmt::format("batch {}{}, seed {}, lr {:.6g} to {:.6g} (warmup {}, decay to step {}), param_dtype {}", c.batch,
                     c.plan.numerics.layout_free() ? fmt::format(" in {} leaves (layout_free)", c.plan.leaves)
                     : c.plan.micro_batches == 1   ? ""
                                                   : fmt::format(" in {} micro-batches", c.plan.micro_batches),
                     c.seed, o.lr, o.min_lr, o.warmup, o.decay_steps, name(c.plan.param_dtype));
}

/// What the config of `sherd train` says; of another program's save it is said that there is none.
std::string text_of(const ckpt::Manifest& manifest, const TrainConfig& config) {
  if (manifest.vocabulary.empty()) return "not known: weights of a Hugging Face directory";
  const Vocabulary vocabulary = Vocabulary::from_text(manifest.vocabulary);
  return fmt::format("{} ({} tokens) of {}", name(vocabulary.kind()), vocabulary.size(),
                     config.data.empty() ? "no data" : config.data);
}

std::string plan_line(const std::string& plan, const char* without) {
  return line("plan", plan.empty() ? without : plan);
}

std::string hash_text(const ckpt::CheckpointReader& save) {
  try {
    return ckpt::hash_save(save);
  } catch (const Error& error) { return fmt::format("none: {}", error.message()); }
}

/// What later bits depend on, of saves that say it.
std::string said_lines(const ckpt::Manifest& manifest) {
  std::string lines;
  for (const char* key : {"sums", "kernels"})
    if (manifest.state.contains(key)) lines += line(key, manifest.state_value<std::string>(key));
  return lines;
}

std::string run_lines(const ckpt::CheckpointReader& save, std::int64_t parameters) {
  const ckpt::Manifest& manifest = save.manifest();
  const std::string ranks = fmt::format("{}", manifest.world_size);
  try {
    const TrainConfig c = train_config_from_toml(manifest.config, "its config");
    return line("run", manifest.run.empty() ? "none: these weights were converted"
                                            : fmt::format("{}, step {} of {}", manifest.run, manifest.step, c.steps)) +
           line("ranks",
                fmt::format("{}, mesh {}, {}", ranks, c.plan.mesh.is_open() ? "dp over all" : c.plan.mesh.text(),
                            c.plan.fully_shard ? "strategy " + c.plan.strategy.text() : "not sharded")) +
           plan_line(manifest.plan.empty() ? print(c.plan) : manifest.plan, "the defaults") +
           line("model", model_text(c.model, parameters)) + line("text", text_of(manifest, c)) +
           line("training", training_text(c)) + said_lines(manifest) + line("hash", hash_text(save));
  } catch (const Error& error) {
    return line("run", fmt::format("{}, step {}", manifest.run, manifest.step)) + line("ranks", ranks) +
           plan_line(manifest.plan, "none, or the defaults") + line("model", fmt::format("{} parameters", parameters)) +
           line("config", fmt::format("none of sherd train: {}", error.message()));
  }
}

/// What a resume goes on with besides tensors, but for the fingerprints that it compares.
std::string state_text(const ckpt::Manifest& manifest) {
  std::vector<std::string> parts;
  for (const char* key : {"skipped_steps", "skipped_batches"})
    if (const auto found = manifest.state.find(key); found != manifest.state.end())
      parts.push_back(std::visit([key](const auto& v) { return fmt::format("{} {}", key, v); }, found->second));
  return fmt::format("{}", fmt::join(parts, ", "));
}

}  // namespace

std::string save_page(const ckpt::CheckpointReader& save) {
  const ckpt::Manifest& manifest = save.manifest();
  std::map<std::string, Sum> kinds, parameters;
  std::set<std::string> files;
  Sum all;
  for (const ckpt::PieceEntry& piece : manifest.pieces) files.insert(piece.file);
  for (const auto& [id, tensor] : tensors_of(manifest)) {
    kinds[id.first].add(tensor);
    all.add(tensor);
    if (id.first != "param") continue;
    parameters[fmt::format("{:<40}{}{}", without_numbers(id.second), name(tensor.first.dtype), tensor.first.shape)].add(
        tensor);
  }
  std::string text = line("save", fmt::format("{}, {} old", save.dir(), age_text(age_of_save(save.dir()))));
  text += run_lines(save, kinds["param"].elements);
  text += line("files", fmt::format("{}, {} of {} tensors", files.size(), format_bytes(all.bytes), all.tensors));
  if (const std::string state = state_text(manifest); !state.empty()) text += line("state", state);
  text += fmt::format("\n{:<16}{:>8}{:>14}{:>12}  {}\n", "kind", "tensors", "elements", "bytes", "dtype");
  for (const auto& [kind, sum] : kinds)
    text += fmt::format("{:<16}{:>8}{:>14}{:>12}  {}\n", kind, sum.tensors, sum.elements, format_bytes(sum.bytes),
                        fmt::join(sum.dtypes, ", "));
  text += fmt::format("\n{:<60}{:>8}{:>12}\n", "parameter", "tensors", "bytes");
  for (const auto& [tensor, sum] : parameters)
    text += fmt::format("{:<60}{:>8}{:>12}\n", tensor, sum.tensors, format_bytes(sum.bytes));
  return text + "\nWith --json: every tensor, the whole config, the state.\n";
}

std::string save_json(const ckpt::CheckpointReader& save) {
  const ckpt::Manifest& manifest = save.manifest();
  ordered_json list = ordered_json::array();
  for (const auto& [id, t] : tensors_of(manifest))
    list.push_back({{"kind", id.first},
                    {"name", id.second},
                    {"dtype", name(t.first.dtype)},
                    {"shape", std::vector<std::int64_t>(t.first.shape.begin(), t.first.shape.end())},
                    {"pieces", t.pieces},
                    {"bytes", t.bytes}});
  ordered_json state = ordered_json::object();
  for (const auto& [key, value] : manifest.state) std::visit([&, &key = key](const auto& v) { state[key] = v; }, value);
  return ordered_json{{"folder", save.dir()}, {"step", manifest.step},     {"ranks", manifest.world_size},
                      {"run", manifest.run},  {"plan", manifest.plan},     {"vocabulary", manifest.vocabulary},
                      {"state", state},       {"config", manifest.config}, {"tensors", list}}
             .dump(2) +
         "\n";
}

std::int64_t age_of_save(const std::string& folder) {
  struct stat status{};
  if (::stat((folder + "/manifest.json").c_str(), &status) != 0) return 0;
  return std::max<std::int64_t>(0, ::time(nullptr) - status.st_mtime);
}

std::string age_text(std::int64_t seconds) {
  if (seconds < 120) return fmt::format("{} s", seconds);
  if (seconds < 7200) return fmt::format("{} min", seconds / 60);
  return seconds < 2 * 86400 ? fmt::format("{} h", seconds / 3600) : fmt::format("{} days", seconds / 86400);
}

}  // namespace sherd
