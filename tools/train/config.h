#pragma once
// Everything a training run can be told: a struct for programs, a TOML file whose keys equal the flags for `sherd
// train`. Defaults are in the struct; what each key means is a line of the table that bind() makes, which train_help()
// and `sherd train --help` print.
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "nn/plan/check.h"
#include "runtime/comm/group/agree.h"
#include "runtime/comm/job/group_choice.h"
#include "tools/train/flags.h"
#include "tools/train/links.h"

namespace sherd::train {

/// Steps first..last, both included, counted from 1: "11:15", or "11" for one. "" leaves them open. Error for anything
/// else, for a step below 1 and for an empty range.
class StepRange {
 public:
  template <nn::Text T>
  StepRange(const T& text) : StepRange(parse(text)) {}  // NOLINT: config.trace_steps = "4:5"
  StepRange(std::int64_t first_step, std::int64_t last_step) : first(first_step), last(last_step) {}
  std::string text() const { return is_open() ? "" : fmt::format("{}:{}", first, last); }
  bool is_open() const { return last == 0; }

  std::int64_t first, last;

 private:
  static StepRange parse(std::string_view text);
};

struct TrainConfig {
  // ---- data ----
  std::string data;
  std::string vocabulary = "auto";

  // ---- the run ----
  std::int64_t seed = 1337;
  std::int64_t steps = 1000;
  std::int64_t batch = 8;
  std::int64_t eval_every = 0;
  std::int64_t eval_batches = 0;
  std::int64_t threads = 0;
  std::int64_t memory_limit = 0;
  bool memory_by_module = false;
  bool explain_peak = false;
  bool predict = false;
  std::string passes;
  std::string dump_graph;

  // ---- files ----
  std::string metrics;
  std::string trace;
  StepRange trace_steps = "";
  std::string save;
  std::int64_t save_every = 0;
  double save_minutes = 15;
  bool save_async = false;
  bool save_on_signal = true;
  std::int64_t keep = 3;
  std::int64_t keep_every = 0;
  bool overwrite = false;
  std::int64_t check_replicas = 100;
  std::string on_nonfinite = "stop";
  double spike = 0;
  std::string resume;
  std::string init_from;

  // ---- ranks ----
  GroupChoice group = "auto";
  Sums sums = "auto";
  bool reproducible = false;
  Links link;
  double deadline = 300;
  double frozen_after = 60;
  bool print_units = false;

  /// How it is spread over the ranks; keys of parallel, compile and accumulate are tensor_parallel, compiled and
  /// micro_batches.
  nn::TrainingPlan plan;

  struct Model {
    std::string style = "llama";
    std::int64_t layers = 4;
    std::int64_t heads = 4;
    std::int64_t kv_heads = 0;
    std::int64_t width = 128;
    std::int64_t hidden = 0;
    std::int64_t sequence = 128;
    std::int64_t positions = 0;
    std::int64_t vocabulary = 0;
    double dropout = 0;
    bool bias = false;
    std::string gelu = "erf";
    bool tied_head = false;
    double rope_theta = 10000;
    double norm_eps = 1e-5;
    double init_std = 0.02;
    bool scaled_residual_init = true;
  } model;

  struct Optimizer {
    static constexpr double kTenthOfLr = -1;  ///< of min_lr
    double lr = 1e-3;
    double min_lr = kTenthOfLr;
    std::int64_t warmup = 100;
    std::int64_t decay_steps = 0;
    double beta1 = 0.9;
    double beta2 = 0.95;
    double eps = 1e-8;
    double weight_decay = 0.1;
    bool decay_matrices_only = true;
    double clip = 1.0;
  } optimizer;
};

/// The table over `config`'s fields; `config` must outlive it.
ConfigTable bind(TrainConfig& config);

/// Puts the numbers that follow from others in their places (kv_heads, hidden, decay_steps, min_lr), then checks ranges
/// and what must divide what. Throws Error naming the keys and both values. What depends on the number of ranks or on
/// the data is left to the trainer.
void resolve(TrainConfig& config);

/// The config of `[CONFIG.toml] [flags]`, resolved; a flag beats the file, which may be left out where --data,
/// --init-from or --resume is given. With --resume DIR what neither gives is as in the newest save there, but for a
/// mesh of another number of ranks (saved_mesh.h: rank 0 says so on stderr); of the keys that are about one invocation
/// (overwrite, trace, ...) nothing is taken. Nothing if the command line asks for --help.
/// Throws Error for anything unknown, of a wrong type or out of range, and for a missing file; ExitError of kUsage
/// where it is the command line that is wrong: its flags if the file without them is good.
std::optional<TrainConfig> load_train_config(std::span<const std::string_view> args);
/// Usage, and a line for every key: its type, what it means, its default.
std::string train_help();

/// What the plan of a run meets on `ranks` ranks, its batch aside, of which a group that has lost ranks makes a part.
nn::PlanFacts facts_of(const TrainConfig& config, int ranks);

/// For checkpoints: text that train_config_from_toml() reads back to the same values. `source` names it in errors.
std::string to_toml(TrainConfig config);
TrainConfig train_config_from_toml(std::string_view text, const std::string& source);

/// Empty if both give the same numbers up to the schedule's end, but for rounding, that is if they differ only in keys
/// of the run (files, threads, group, eager or compiled, where the data is), in those of rounding (device, mesh,
/// strategy, ...) or in optimizer.decay_steps; else one line that names the first key that differs and both values. For
/// a resume: recipe_difference(saved, "the checkpoint", now, "this run").
std::string recipe_difference(TrainConfig a, std::string_view a_name, TrainConfig b, std::string_view b_name);
/// Error if the recipes differ, with the first key, both values and the remedy.
void check_resumes(const TrainConfig& saved, const TrainConfig& now);
/// All keys, for ranks, which must agree on everything that makes them act together.
Facts facts_of(TrainConfig config);
/// Whether keys of rounding differ, as those of the mesh: sums have other parts.
bool rounds_otherwise(TrainConfig a, TrainConfig b);

}  // namespace sherd::train
