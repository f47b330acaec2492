#include "tools/train/config.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <initializer_list>
#include <limits>
#include <utility>
#include <vector>

#include "compile/passes/pass.h"
#include "nn/checkpoint/format/folders.h"
#include "nn/checkpoint/format/saves.h"
#include "runtime/comm/job/world.h"
#include "runtime/os/allowed_cpus.h"
#include "runtime/tensor/error.h"
#include "runtime/tensor/quantity.h"
#include "tools/train/exit_status.h"
#include "tools/train/flags.h"
#include "tools/train/metrics.h"
#include "tools/train/output_file.h"
#include "tools/train/restart.h"
#include "tools/train/saved_mesh.h"
#include "tools/train/step_trace.h"
#include "tools/train/weights.h"

// Keys without a section are about the run, [parallel] is about tensor parallelism, [model] is the network, [optimizer]
// its update and learning rate. Ranges are checked in a form that NaN fails.
namespace sherd::train {

namespace {

template <std::size_t N>
void check_choice(std::string_view key, const std::string& value, const std::array<std::string_view, N>& choices) {
  if (std::find(choices.begin(), choices.end(), value) != choices.end()) return;
  fail("{} must be one of {}, got \"{}\"", key, fmt::join(choices, ", "), value);
}

struct IntegerRange {
  std::string_view key;
  std::int64_t value, least, most;
};

void check_ranges(std::initializer_list<IntegerRange> ranges) {
  for (const auto& [key, value, least, most] : ranges) {
    check(value >= least, "{} must be at least {}, got {}", key, least, value);
    check(value <= most, "{} must be at most {}, got {}", key, most, value);
  }
}

// Far above anything that is trained, and low enough that sizes computed from several of them do not overflow, and that
// modules are made in seconds: the memory they ask for is another matter.
constexpr std::int64_t kMostSteps = std::int64_t{1} << 48;
constexpr std::int64_t kMostTokens = std::int64_t{1} << 28;  // of a step
constexpr std::int64_t kMostWidth = std::int64_t{1} << 20;
constexpr std::int64_t kMostLayers = 10'000;

// What rows compute with: they would make 0 or infinity of it, and those of gradients that are 0 NaN.
constexpr double kLeastF32 = std::numeric_limits<float>::min(), kMostF32 = std::numeric_limits<float>::max();

void check_positive_f32(std::string_view key, double value) {
  check(value >= kLeastF32 && value <= kMostF32, "{} must be positive, from {:.8g} to {:.8g} as f32 has them, got {}",
        key, kLeastF32, kMostF32, value);
}

void check_divides(std::string_view key, std::int64_t value, std::string_view by_key, std::int64_t by) {
  check(value % by == 0, "{} = {} must be a multiple of {} = {}", key, value, by_key, by);
}

void bind_run(ConfigTable& table, TrainConfig& c) {
  using enum KeyRole;
  table.add("data", &c.data, "text file, or folder whose regular files are read in order of their paths", run);
  table.add("vocabulary", &c.vocabulary,
            "bytes (256 tokens, any file) or chars (distinct characters of the data); auto: that of the checkpoint in "
            "init_from, else bytes of text");
  table.add("seed", &c.seed, "of initial values, windows and dropout");
  table.add("steps", &c.steps, "optimizer steps in all, those before a resume included", run);
  table.add("batch", &c.batch, "sequences per step over all ranks and micro-batches");
  table.add("accumulate", &c.plan.micro_batches, "micro-batches per step, whose gradients are summed");
  table.add("numerics", text_field(c.plan.numerics),
            "default, or layout_free: the same bits on any power of two of ranks with data, up to the leaves");
  table.add("leaves", &c.plan.leaves, "layout_free: equal parts of the batch, whose gradients are summed as a tree");
  table.add("eval_every", &c.eval_every, "steps between evaluations; 0: only after the last step", run);
  table.add("eval_batches", &c.eval_batches, "batches per evaluation; 0: the whole validation part", run);
  table.add("threads", &c.threads, "threads per rank; 0: the allowed CPUs shared among the ranks", run);
  table.add("memory_limit", ByteField{&c.memory_limit}, "largest size of the tensors of a rank; 0: no limit", run);
  table.add("memory_by_module", &c.memory_by_module,
            "print first what parameters, gradients, optimizer state and saved activations of each module will hold",
            invocation);
  table.add("explain_peak", &c.explain_peak,
            "print in the end when memory was at its peak, and the largest tensors that rank 0 held then", invocation);
  table.add("predict", &c.predict,
            "print first what rank 0 will hold, and what a step will take once sherd calibrate has run", invocation);
  table.add("device", text_field(c.plan.device), kDeviceHelp, rounding);
  table.add("compile", &c.plan.compiled, "record one step and replay it; the same bits as without", run);
  table.add(
      "memory_budget", text_field(c.plan.memory_budget),
      "compile: the most that a rank holds, as 1.5GB, or 75% of what it does without; the rest is computed again, or "
      "moved out and back where --offload-activations says where to",
      run);
  table.add("passes", &c.passes,
            "compile: passes that are left out of those that a recording is rewritten by, as -budget,-dead_nodes", run);
  table.add("dump_graph", &c.dump_graph,
            "compile: folder for the recorded step as each pass leaves it, and pictures of what it holds and takes",
            invocation);
  table.add("metrics", &c.metrics, "file for one JSON object per step", run);
  table.add("trace", &c.trace, "file for a timeline of a few steps on all ranks, for ui.perfetto.dev", invocation);
  table.add("trace_steps", text_field(c.trace_steps), "the steps in it, FIRST:LAST; empty: five, after ten to settle",
            invocation);
}

void bind_saves(ConfigTable& table, TrainConfig& c) {
  using enum KeyRole;
  table.add("save", &c.save, "folder for checkpoints: one after the last step, and others as the keys below say", run);
  table.add("save_every", &c.save_every, "steps between checkpoints; 0: none is due by the number of steps", run);
  table.add("save_minutes", &c.save_minutes,
            "a checkpoint is due when the last one, or the start, is so long ago; 0: none is due by time", run);
  table.add("save_async", &c.save_async,
            "checkpoints are written while training goes on; what a step changes before it is written is copied, for "
            "which as much memory is kept as this rank saves",
            run);
  table.add(
      "save_on_signal", &c.save_on_signal,
      "SIGTERM and Ctrl-C save after the step that runs, then end; SIGUSR1 saves and goes on; false: they end the "
      "run as ever",
      run);
  table.add("keep", &c.keep, "how many of the newest checkpoints stay in the folder", run);
  table.add("keep_every", &c.keep_every, "those at multiples of so many steps stay too; 0: none", run);
  table.add("overwrite", &c.overwrite, "the first checkpoint takes the place of those of another run in the folder",
            invocation);
  table.add(
      "check_replicas", &c.check_replicas,
      "steps between comparisons of what ranks hold copies of, by hashes, made before each save too: a difference ends "
      "the run; 0: never",
      run);
  table.add(
      "on_nonfinite", &c.on_nonfinite,
      "what follows a step whose loss or gradients are not finite: stop, with an error; skip: the update is left "
      "out, on all ranks, at most 32 times in a row; rollback: to the last checkpoint, and without that step's batch",
      run);
  table.add(
      "spike", &c.spike,
      "a loss above the median of the last 100 steps by more than this many median deviations is treated the same "
      "way; 0: none is",
      run);
  table.add("resume", &c.resume,
            "checkpoint folder, or one step in it, to continue from; what is not given is as there", invocation);
  table.add(
      "init_from", &c.init_from,
      "checkpoint or Hugging Face folder with the weights to start from; keys of [model] that are not given are its; "
      "the text's tokens must be those it has learnt, or vocabulary be given",
      invocation);
}

void bind_ranks(ConfigTable& table, TrainConfig& c) {
  using enum KeyRole;
  table.add("group", text_field(c.group), kGroupHelp, invocation);
  table.add(
      "sums", text_field(c.sums),
      "how floats of ranks are added: ordered, as a tree, to the bits of CPUs; fast, as NCCL likes; auto: ordered, "
      "but with more than 8 ranks or several hosts where NCCL has them",
      rounding);
  table.add("reproducible", &c.reproducible,
            "the same bits on the same kind of machine, whoever starts the run: no algorithm is picked by timing, "
            "attention and sums have fixed orders",
            rounding);
  table.add("mesh", text_field(c.plan.mesh),
            "ranks as axes, slowest first: replicate=2,dp=2,tp=2; dp shards, tp shards matrices; empty: dp over all, "
            "for hybrid strategies over those of a host",
            rounding);
  table.add("link", text_field(c.link),
            "BYTES_PER_S,SECONDS, as 10GB,20e-6: collectives take as long as on a link like that; "
            "dp=2e9,0;replicate=2e8,0 gives axes of the mesh links of their own; empty: as they are",
            run);
  table.add("deadline", &c.deadline, "seconds to wait for other ranks, at the start and in each collective", run);
  table.add("frozen_after", &c.frozen_after,
            "seconds without a sign of life, as of a stopped process, after which a rank that is waited for is given "
            "up, at the start too; deadline if that is less",
            run);
}

void bind_sharding(ConfigTable& table, TrainConfig& c) {
  using enum KeyRole;
  table.add("fully_shard", &c.plan.fully_shard,
            "shard the model as strategy says; false: one rank with data, not sharded", rounding);
  table.add(
      "strategy", text_field(c.plan.strategy),
      fmt::format("what is sharded over dp: {}; hybrid ones copy over replicate, or where the mesh names none over "
                  "the hosts",
                  fmt::join(nn::strategy_names(), ", ")),
      rounding);
  table.add("units", text_field(c.plan.units),
            "what is gathered at a time: block; fine: attention and feed-forward part apart; coarse: the whole model; "
            "parameters=N: modules of N parameters and more; bytes=N: modules that fit N bytes together, as bytes=32MB",
            run);
  table.add("recompute", text_field(c.plan.recompute),
            "what blocks compute again in backward instead of keeping it: none; selective: all but q, k, v and the "
            "result of attention; full: all but their input",
            run);
  table.add("offload", text_field(c.plan.offload),
            "what lies outside of memory between its uses, and is brought beside the compute: none; optimizer: its "
            "state; parameters: their shards; all: these and the shards of gradients; all:DIR: in a file in DIR, else "
            "of temporary files; on a GPU in memory of the host, without a DIR",
            run);
  table.add("offload_keep", ByteField{&c.plan.offload_keep},
            "how much of what offload names stays in memory of a rank: those of the smallest units and parameters, as "
            "many as fit; 0: none",
            run);
  table.add(
      "offload_activations", text_field(c.plan.offload_activations),
      "what forward keeps for backward outside of memory, and fetches ahead of its use: none; blocks: what blocks "
      "save (with recompute: their inputs); blocks:DIR: in a file in DIR, else of temporary files; on a GPU in "
      "memory of the host, without a DIR",
      run);
  table.add(
      "print_units", &c.print_units,
      "print what each unit holds, and of which parameters, in the order in which units run, after the first step",
      invocation);
  table.add("reshard_after_forward", &c.plan.reshard_after_forward,
            "free gathered parameters between forward and backward; false: full_shard becomes shard_grad_op; a number "
            "k: k ranks in a row keep 1/k of them each, and backward gathers among these",
            run);
  table.add("prefetch", &c.plan.prefetch, "gather the next block's parameters while a block computes", run);
  table.add("accumulate_shards", &c.plan.accumulate_shards,
            "reduce the gradients of every micro-batch, to add up shards: less memory for more communication");
}

void bind_parallel(ConfigTable& table, nn::TensorParallelOptions& p) {
  using enum KeyRole;
  table.add("parallel.sequence", &p.sequence_parallel,
            "shard the activations between matrices along the sequence, over tp", rounding);
  table.add("parallel.loss", &p.loss_parallel, "shard the vocabulary of head and loss over tp", rounding);
}

void bind_precision(ConfigTable& table, TrainConfig& c) {
  table.add("param_dtype", text_field(c.plan.param_dtype),
            "type to compute in and to gather parameters as: f32, bf16 or f16");
  table.add("reduce_dtype", text_field(c.plan.reduce_dtype),
            "type that gradients are rounded to when they are reduced");
  table.add("gather", text_field(c.plan.gather),
            "how parameters travel: exact, or int8: matrices in 8 bits, with a scale per block");
  table.add("reduce", text_field(c.plan.reduce),
            "how gradients travel over dp: exact, or int8: in 8 bits, with a scale per block");
  table.add(
      "loss_scale", text_field(c.plan.loss_scale),
      "what the loss is multiplied by so that gradients of f16 do not underflow: dynamic (from 65536, halved when "
      "a step overflows and is skipped), a number, none; auto: dynamic where a type is f16");
}

void bind_model(ConfigTable& table, TrainConfig::Model& m) {
  table.add("model.style", &m.style, "gpt2 (learned positions, layer norm, GELU) or llama (rotary, RMS norm, SwiGLU)");
  table.add("model.layers", &m.layers, "blocks");
  table.add("model.heads", &m.heads, "query heads");
  table.add("model.kv_heads", &m.kv_heads, "key and value heads, llama only; 0: as many as heads");
  table.add("model.width", &m.width, "of the residual stream");
  table.add("model.hidden", &m.hidden, "of the feed-forward part; 0: 4 x width (gpt2), 8/3 x width (llama)");
  table.add("model.sequence", &m.sequence, "tokens per sequence in training");
  table.add("model.positions", &m.positions, "tokens in the longest sequence the model takes; 0: sequence");
  table.add("model.vocabulary", &m.vocabulary, "tokens the model knows; 0: those of the data's vocabulary");
  table.add("model.dropout", &m.dropout, "probability, 0 to below 1, gpt2 only");
  table.add("model.bias", &m.bias, "biases in linear layers and layer norms, gpt2 only");
  table.add("model.gelu", &m.gelu, "erf (exact) or tanh (approximation), gpt2 only");
  table.add("model.tied_head", &m.tied_head, "the output layer is the token embedding");
  table.add("model.rope_theta", &m.rope_theta, "base of the rotary frequencies, llama only");
  table.add("model.norm_eps", &m.norm_eps, "added to the variance in norms");
  table.add("model.init_std", &m.init_std, "standard deviation of initial weights");
  table.add("model.scaled_residual_init", &m.scaled_residual_init,
            "divide init_std by sqrt(2 x layers) where a block adds to the residual stream");
}

void bind_optimizer(ConfigTable& table, TrainConfig::Optimizer& o) {
  table.add("optimizer.lr", &o.lr, "highest learning rate of AdamW");
  table.add("optimizer.min_lr", &o.min_lr, "learning rate at the end of the cosine; not given, or -1: lr / 10");
  table.add("optimizer.warmup", &o.warmup, "steps of linear warmup");
  table.add("optimizer.decay_steps", &o.decay_steps, "step at which the cosine ends; 0: steps");
  table.add("optimizer.beta1", &o.beta1, "decay of the mean of gradients");
  table.add("optimizer.beta2", &o.beta2, "decay of the mean of squared gradients");
  table.add("optimizer.eps", &o.eps, "added to the root of the second mean");
  table.add("optimizer.weight_decay", &o.weight_decay, "decoupled decay of matrices and embeddings");
  table.add("optimizer.decay_matrices_only", &o.decay_matrices_only, "false: biases and norms decay too");
  table.add("optimizer.clip", &o.clip, "largest norm of all gradients together; 0: no clipping");
}

void check_saves(const TrainConfig& c) {
  check_ranges({{"save_every", c.save_every, 0, kMostSteps},
                {"keep", c.keep, 1, std::numeric_limits<int>::max()},
                {"keep_every", c.keep_every, 0, kMostSteps},
                {"check_replicas", c.check_replicas, 0, kMostSteps}});
  check(c.save_minutes >= 0, "save_minutes must be at least 0, got {}", c.save_minutes);
  check(c.save_every == 0 || !c.save.empty(), "save_every = {} needs a folder: pass --save DIR", c.save_every);
  check(!c.save_async || !c.save.empty(), "save_async is about the folder of checkpoints: pass --save DIR");
  check(!c.overwrite || !c.save.empty(), "overwrite is about the folder of checkpoints: pass --save DIR");
  check_choice("on_nonfinite", c.on_nonfinite, std::array<std::string_view, 3>{"stop", "skip", "rollback"});
  check(c.on_nonfinite != "rollback" || !c.save.empty(), "on_nonfinite = rollback needs a folder: pass --save DIR");
  check(c.spike >= 0, "spike must be at least 0, got {}", c.spike);
  check(c.spike == 0 || c.on_nonfinite != "skip",
        "spike = {} is noticed when the update is made, so it cannot be skipped: on_nonfinite must be stop or rollback",
        c.spike);
}

void check_captured(const TrainConfig& c) {
  for (const auto& [key, text] : {std::pair("passes", &c.passes), {"dump_graph", &c.dump_graph}})
    check(c.plan.compiled || text->empty(), "{} = {} is of captured steps; set compile, or leave it out", key, *text);
  const std::vector<ir::Pass> passes = ir::passes_named(c.passes);
  check(!c.plan.memory_budget.is_set() || std::ranges::find(passes, "budget", &ir::Pass::name) != passes.end(),
        "memory_budget = {} is kept by a pass that passes = {} leaves out; leave one of them out",
        c.plan.memory_budget.text(), c.passes);
}

void check_run(const TrainConfig& c) {
  check_choice("vocabulary", c.vocabulary, std::array<std::string_view, 3>{"auto", "bytes", "chars"});
  check_ranges({{"steps", c.steps, 1, kMostSteps},
                {"batch", c.batch, 1, kMostTokens},
                {"accumulate", c.plan.micro_batches, 1, kMostTokens},
                {"eval_every", c.eval_every, 0, kMostSteps},
                {"eval_batches", c.eval_batches, 0, std::int64_t{1} << 32},
                {"threads", c.threads, 0, kMaxThreads},
                {"memory_limit", c.memory_limit, 0, std::int64_t{1} << 60}});
  check_divides("batch", c.batch, "accumulate", c.plan.micro_batches);
  check(c.batch <= kMostTokens / (c.model.sequence + 1),
        "batch = {} sequences of model.sequence = {} tokens are {:.3g} tokens in a step; at most {} are possible",
        c.batch, c.model.sequence, static_cast<double>(c.batch) * static_cast<double>(c.model.sequence), kMostTokens);
  check_saves(c);
  check(c.trace_steps.is_open() || !c.trace.empty(), "trace_steps = {} needs a file: pass --trace FILE",
        c.trace_steps.text());
  nn::check_plan(c.plan);
  check_captured(c);
  if (c.sums.text() == "fast")
    check(!c.reproducible && !c.plan.numerics.layout_free(),
          "sums = fast adds in NCCL's order, which differs between its versions and machines; {} needs ordered",
          c.reproducible ? "reproducible" : "numerics = layout_free");
  check(c.deadline > 0 && c.deadline < 1e9, "deadline must be a positive number of seconds, got {}", c.deadline);
  check(c.frozen_after > 0 && c.frozen_after < 1e9, "frozen_after must be a positive number of seconds, got {}",
        c.frozen_after);
}

void check_model(const TrainConfig::Model& m) {
  check_choice("model.style", m.style, std::array<std::string_view, 2>{"gpt2", "llama"});
  check_choice("model.gelu", m.gelu, std::array<std::string_view, 2>{"erf", "tanh"});
  check_ranges({{"model.layers", m.layers, 1, kMostLayers},
                {"model.hidden", m.hidden, 1, 8 * kMostWidth},
                {"model.vocabulary", m.vocabulary, 0, std::int64_t{1} << 28},
                {"model.positions", m.positions, 0, kMostTokens}});
  check(m.positions == 0 || m.sequence <= m.positions, "model.sequence = {} is longer than model.positions = {}",
        m.sequence, m.positions);
  check_divides("model.width", m.width, "model.heads", m.heads);
  check_divides("model.heads", m.heads, "model.kv_heads", m.kv_heads);
  if (m.style == "gpt2") {
    check(m.kv_heads == m.heads, "model.kv_heads = {} must equal model.heads = {} in a gpt2 model", m.kv_heads,
          m.heads);
  } else {
    check(!m.bias, "model.bias is for gpt2 models; a llama model has no biases");
    check(m.width / m.heads % 2 == 0, "model.width / model.heads = {} must be even: rotary positions turn pairs",
          m.width / m.heads);
  }
  check(m.dropout >= 0 && m.dropout < 1, "model.dropout must be at least 0 and below 1, got {}", m.dropout);
  check(m.dropout == 0 || m.style == "gpt2", "model.dropout = {} is for gpt2 models; a llama model has none",
        m.dropout);
  check_positive_f32("model.rope_theta", m.rope_theta);
  check(m.norm_eps >= kLeastF32 && m.norm_eps <= 1, "model.norm_eps must be from {:.8g} to 1, got {}", kLeastF32,
        m.norm_eps);
  check_positive_f32("model.init_std", m.init_std);
}

void check_optimizer(const TrainConfig::Optimizer& o) {
  check_positive_f32("optimizer.lr", o.lr);
  check(o.min_lr >= 0 && o.min_lr <= o.lr,
        "optimizer.min_lr must be from 0 to optimizer.lr = {}, or -1 for a tenth of that, got {}", o.lr, o.min_lr);
  check_ranges(
      {{"optimizer.warmup", o.warmup, 0, kMostSteps}, {"optimizer.decay_steps", o.decay_steps, 1, kMostSteps}});
  check(o.beta1 >= 0 && o.beta1 < 1, "optimizer.beta1 must be at least 0 and below 1, got {}", o.beta1);
  check(o.beta2 >= 0 && o.beta2 < 1, "optimizer.beta2 must be at least 0 and below 1, got {}", o.beta2);
  check_positive_f32("optimizer.eps", o.eps);
  if (o.weight_decay != 0) check_positive_f32("optimizer.weight_decay", o.weight_decay);
  check(o.clip == 0 || o.clip >= kLeastF32, "optimizer.clip must be 0, or at least {:.8g} as f32 has it, got {}",
        kLeastF32, o.clip);
}

/// The folder in which the save lies beside others of its run, or alone.
std::string folder_of_saves(const std::string& dir, const std::string& save) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  if (!fs::equivalent(dir, save, ignored)) return dir;
  const fs::path inside = fs::absolute(fs::path(dir) / "", ignored).lexically_normal();  // ends in '/'
  return inside.parent_path().parent_path().string();
}

/// Gives the keys that `table` was not given the values of the newest good save in `dir`, and returns them all. The run
/// saves beside that save, wherever it was made; keys of captured steps stay if it is not to be compiled any more.
TrainConfig take_saved(TrainConfig& config, ConfigTable& table, const std::string& dir) {
  namespace fs = std::filesystem;
  const ConfigTable given = table;
  const auto save = ckpt::open_newest_good(dir, *make_single_group(), ckpt::Verify::files, [](const std::string&) {});
  TrainConfig saved = train_config_from_toml(save->manifest().config, dir);
  const bool is_eager = given.is_given("compile") && !config.plan.compiled;
  const auto is_of_captured = [](std::string_view key) { return key == "memory_budget" || key == "passes"; };
  for (const KeyRole role : {KeyRole::recipe, KeyRole::rounding, KeyRole::run})
    for (const auto& [key, value] : bind(saved).values(role))
      if (!table.is_given(key) && !(is_eager && is_of_captured(key))) table.set(key, value, dir);
  std::error_code ignored;
  if (const std::string here = folder_of_saves(dir, save->dir());
      !given.is_given("save") && !config.save.empty() && !fs::equivalent(config.save, here, ignored))
    config.save = here;
  else if (given.is_given("save") && !given.is_given("metrics") && !fs::equivalent(config.save, here, ignored))
    check_usage(!fs::is_regular_file(config.metrics, ignored),
                "resume from {0} with --save {1}: \"{2}\" has the lines of the run that saves to {3}, and those after "
                "the save would be lost; pass --metrics FILE, a file of this run's own",
                dir, config.save, config.metrics, here);
  check(given.is_given("data") || fs::exists(config.data, ignored),
        "resume from {}: the data of the save, \"{}\", is not there; pass --data PATH", dir, config.data);
  return saved;
}

/// What to train on comes from a config file, or from flags, and the defaults say the rest.
void check_has_source(const CommandLine& line) {
  check_usage(line.words.size() <= 1, "sherd train takes one config file, got \"{}\"",
              fmt::join(line.words, "\" and \""));
  const auto is_source = [](const CommandLine::Flag& flag) {
    return flag.key == "data" || flag.key == "init_from" || flag.key == "resume";
  };
  check_usage(!line.words.empty() || std::ranges::any_of(line.flags, is_source),
              "sherd train has nothing to train on; pass --data PATH, a config file, --init-from DIR with --data PATH, "
              "or --resume DIR");
}

/// A text in the place of a config is the slip of many.
void load_config_file(ConfigTable& table, const std::string& path) {
  try {
    load_toml_file(table, path);
  } catch (const ExitError& error) {
    if (path.ends_with(".toml")) throw;
    throw ExitError(error.status(),
                    fmt::format("{}; if it is a text to train on, pass it as --data {}", error.message(), path));
  }
}

/// Before anything is written: a slip would cost a text, or the config.
void check_outputs(const TrainConfig& config, const CommandLine& line) {
  const FileOfKey read[] = {{"data", config.data}, {"the config file", line.words.empty() ? "" : line.words[0]}};
  const FileOfKey written[] = {{"metrics", config.metrics}, {"trace", config.trace}};
  check_apart(read, written);
  if (!config.metrics.empty()) check_replaceable(config.metrics, "metrics", kMetricsBeginning);
  if (!config.trace.empty()) check_replaceable(config.trace, "trace", kTraceBeginning);
}

/// Empty if there is none.
std::string problem_of(TrainConfig config) {
  try {
    resolve(config);
    return {};
  } catch (const Error& error) { return error.message(); }
}

}  // namespace

StepRange StepRange::parse(std::string_view text) {
  if (text.empty()) return {0, 0};
  const std::size_t colon = text.find(':');
  const auto first = parse_count(text.substr(0, colon));
  const auto last = colon == text.npos ? first : parse_count(text.substr(colon + 1));
  check(first && last && *first >= 1 && *first <= *last,
        "trace_steps must be FIRST:LAST, two step numbers from 1 up, or one step, got \"{}\"", text);
  return {*first, *last};
}

nn::PlanFacts facts_of(const TrainConfig& config, int ranks) {
  return {.ranks = ranks, .memory_limit = config.memory_limit};
}

ConfigTable bind(TrainConfig& config) {
  ConfigTable table;
  bind_run(table, config);
  bind_saves(table, config);
  bind_ranks(table, config);
  bind_sharding(table, config);
  bind_precision(table, config);
  bind_parallel(table, config.plan.tensor_parallel);
  bind_model(table, config.model);
  bind_optimizer(table, config.optimizer);
  return table;
}

void resolve(TrainConfig& config) {
  TrainConfig::Model& m = config.model;
  // Values from which others are computed here, and by which the other checks divide.
  check_ranges({{"model.heads", m.heads, 1, kMostWidth},
                {"model.width", m.width, 1, kMostWidth},
                {"model.kv_heads", m.kv_heads, 0, kMostWidth},
                {"model.sequence", m.sequence, 1, kMostTokens - 1}});
  if (m.kv_heads == 0) m.kv_heads = m.heads;
  // SwiGLU has three matrices for GELU's two, so 8/3 gives it the same size; rounded up to a multiple of 32.
  if (m.hidden == 0) m.hidden = m.style == "gpt2" ? 4 * m.width : (8 * m.width + 95) / 96 * 32;
  TrainConfig::Optimizer& o = config.optimizer;
  if (o.decay_steps == 0) o.decay_steps = config.steps;
  if (o.min_lr == TrainConfig::Optimizer::kTenthOfLr) o.min_lr = o.lr / 10;
  check_run(config);
  check_model(m);
  check_optimizer(o);
}

std::optional<TrainConfig> load_train_config(std::span<const std::string_view> args) {
  TrainConfig config;
  ConfigTable table = bind(config);
  const CommandLine line = parse_command_line(table, args);
  if (line.help) return std::nullopt;
  check_has_source(line);
  if (!line.words.empty()) load_config_file(table, line.words[0]);
  const TrainConfig of_file = config;
  apply_flags(table, line);
  const ConfigTable given = table;
  const RankInfo rank = discover_rank();
  const std::string asked = config.resume;
  const auto go_on = [&] {
    const std::string place = saves_of_earlier_start(config, rank);
    if (place.empty()) return;
    config.resume = place;
    config.init_from.clear();
  };
  go_on();
  // A later start may find a disk gone that was there in the first one.
  if (!asked.empty() && config.resume == asked && rank.restart == 0 && ckpt::list_saves(asked).empty())
    as_usage([&] { ckpt::newest_save(asked); });
  // A run that resumes has the model of its checkpoint, whatever the first one of its kind started from.
  std::optional<TrainConfig> saved;
  if (!config.resume.empty()) {
    if (rank.rank == 0 && given.is_given("init_from") && !config.init_from.empty())
      say_on_stderr(fmt::format("resume from {}: what --init-from {} names is not read; the save has the model",
                                config.resume, config.init_from));
    saved = take_saved(config, table, config.resume);
    if (rank.rank == 0 && !given.is_given("save") && config.save != saved->save)
      say_on_stderr(fmt::format("resume from {}: saves go to {}, where that one lies; it was made in {}", config.resume,
                                config.save, saved->save));
    go_on();  // the save may name the folder to save to, in which there is more of this job
    const std::string text = as_usage([&] { return take_ranks_there_are(config, given, rank.full_world_size); });
    if (rank.rank == 0 && !text.empty()) say_on_stderr(text);
  } else if (!config.init_from.empty()) {
    check_usage(!line.words.empty() || !config.data.empty(),
                "sherd train --init-from {} has no text to train on; pass --data PATH", config.init_from);
    take_model(Weights(config.init_from, *make_single_group(), ckpt::Verify::files), table);
  }
  try {
    resolve(config);
  } catch (const Error& error) {
    // What was given beside a save is at odds with it, which is said, but for accumulate that leaves take the place of.
    const bool is_of_leaves = config.plan.numerics.layout_free() && config.plan.micro_batches > 1;
    if (saved && !is_of_leaves) as_usage([&] { check_resumes(*saved, config); });
    const bool is_of_file = !line.words.empty() && problem_of(of_file) == error.message();
    throw ExitError(kUsage, is_of_file ? fmt::format("{}: {}", line.words[0], error.message()) : error.message());
  }
  if (rank.rank == 0) check_outputs(config, line);  // it writes them, perhaps before another one looks
  return config;
}

std::string train_help() {
  TrainConfig config;
  config.optimizer.min_lr = config.optimizer.lr / 10;
  return "usage: sherd train [CONFIG.toml] --data PATH [flags]\n"
         "       sherd train --resume DIR [flags]\n\n"
         "Every flag is also a key of the file: --model.layers is layers under [model]. Without a file the defaults\n"
         "below train a small model.\n\n" +
         bind(config).help();
}

std::string to_toml(TrainConfig config) { return bind(config).to_toml(); }

TrainConfig train_config_from_toml(std::string_view text, const std::string& source) {
  TrainConfig config;
  ConfigTable table = bind(config);
  load_toml_text(table, text, source);
  resolve(config);
  return config;
}

std::string recipe_difference(TrainConfig a, std::string_view a_name, TrainConfig b, std::string_view b_name) {
  a.optimizer.decay_steps = b.optimizer.decay_steps;  // a plan for later steps
  const auto values_a = bind(a).values(KeyRole::recipe), values_b = bind(b).values(KeyRole::recipe);
  const auto [of_a, of_b] = std::ranges::mismatch(values_a, values_b);
  if (of_a == values_a.end()) return "";
  return fmt::format("{} has {} = {}, {} has {}", a_name, of_a->first, to_string(of_a->second), b_name,
                     to_string(of_b->second));
}

void check_resumes(const TrainConfig& saved, const TrainConfig& now) {
  const std::string difference = recipe_difference(saved, "the checkpoint", now, "this run");
  check(difference.empty(),
        "resume from {}: {}; leave it out of config and flags to go on with the checkpoint's value, or begin a new run",
        now.resume, difference);
}

Facts facts_of(TrainConfig config) {
  Facts facts;
  for (const auto& [key, value] : bind(config).values()) facts.emplace_back(key, to_string(value));
  return facts;
}

bool rounds_otherwise(TrainConfig a, TrainConfig b) {
  return bind(a).values(KeyRole::rounding) != bind(b).values(KeyRole::rounding);
}

}  // namespace sherd::train
