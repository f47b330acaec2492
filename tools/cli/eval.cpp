// `sherd eval DIR --tokens FILE [--logits OUT.safetensors]`: the mean next-token loss of a model over given tokens.
// Ranks take the sequences in turn, over a sharded model. One sequence is one forward, so that neither the loss nor a
// logit depends on the number of ranks.
#include <algorithm>

#include "nn/parallel/shard/fully_shard.h"
#include "runtime/autograd/autograd.h"
#include "runtime/comm/group/agree.h"
#include "runtime/comm/group/host_group.h"
#include "runtime/comm/job/world.h"
#include "runtime/cpu/parallel.h"
#include "runtime/op/host_reads.h"
#include "runtime/op/ops.h"
#include "tools/cli/command.h"
#include "tools/cli/cpu_share.h"
#include "tools/train/device_flag.h"
#include "tools/train/exit_status.h"
#include "tools/train/flags.h"
#include "tools/train/weights.h"

namespace sherd {

namespace {

struct EvalOptions {
  std::string dir, tokens, logits;
  std::int64_t threads = 0;
  std::string device = "cpu";
};

/// `tokens` [B, T] of the file, checked against the model.
Tensor read_tokens(const std::string& path, const TrainConfig::Model& model) {
  const SafetensorsFile file = SafetensorsFile::open(path);
  const TensorEntry& entry = file.at("tokens");
  check(entry.dtype == DType::i64 && entry.shape.size() == 2, "\"{}\": \"tokens\" is {}{}, not i64 [sequences, tokens]",
        path, name(entry.dtype), to_string(entry.shape));
  const std::int64_t sequences = entry.shape[0], length = entry.shape[1];
  check(sequences > 0 && length > 1, "\"{}\": \"tokens\" is {}; a loss needs a sequence of two tokens or more", path,
        to_string(entry.shape));
  check(length <= model.positions, "\"{}\": sequences of {} tokens, the model takes {}", path, length, model.positions);
  Tensor tokens = Tensor::empty(entry.shape, DType::i64);
  file.read(entry, 0, {static_cast<std::byte*>(tokens.raw()), static_cast<std::size_t>(tokens.bytes())});
  const std::int64_t* values = tokens.data<std::int64_t>();
  const auto bad =
      std::find_if(values, values + tokens.numel(), [&](std::int64_t t) { return t < 0 || t >= model.vocabulary; });
  check(bad == values + tokens.numel(), "\"{}\": token {} of sequence {} is {}, the model has {} tokens", path,
        (bad - values) % length, (bad - values) / length, bad == values + tokens.numel() ? 0 : *bad, model.vocabulary);
  return tokens;
}

std::unique_ptr<nn::LanguageModel> make_loaded(const Weights& weights, Device device,
                                               const std::shared_ptr<ProcessGroup>& group) {
  auto model = nn::make_language_model(weights.config());
  if (group->size() > 1) {
    const DeviceMesh mesh(group, "dp");
    for (nn::Module* block : model->blocks()) nn::fully_shard(*block, mesh);
    nn::fully_shard(*model, mesh);
  }
  model->allocate(device);
  together(*group, [&] { weights.load(*model); });
  model->train(false);
  return model;
}

/// tokens [1, T] -> what follows each; the last has no target.
Tensor next_tokens(const Tensor& tokens) {
  Tensor targets = Tensor::empty(tokens.shape(), DType::i64);
  const std::int64_t* from = tokens.data<std::int64_t>();
  std::copy(from + 1, from + tokens.numel(), targets.mutable_data<std::int64_t>());
  targets.mutable_data<std::int64_t>()[tokens.numel() - 1] = -100;
  return targets;
}

/// Mean over all sequences. Writes the logits [B, T, V] if `options.logits` names a file.
double evaluate(const EvalOptions& options, const std::shared_ptr<ProcessGroup>& group) {
  Device device;
  together(*group, [&] { device = open_device(options.device, group->size()); });
  const Weights weights(options.dir, *group);
  Tensor tokens;
  std::optional<SafetensorsWriter> out;
  together(*group, [&] {
    tokens = read_tokens(options.tokens, weights.model());
    const TensorInfo info{"logits", DType::f32, {tokens.size(0), tokens.size(1), weights.model().vocabulary}};
    if (!options.logits.empty() && group->rank() == 0) out.emplace(options.logits, std::span(&info, 1));
  });
  const auto model = make_loaded(weights, device, group);
  GradMode off(false);
  const std::int64_t ranks = group->size(), count = tokens.size(0);
  std::vector<double> losses(static_cast<std::size_t>(count), 0.0);
  HostReads reads;
  for (std::int64_t first = 0; first < count; first += ranks) {
    // Forwards gather, so all ranks run equally many: one without a sequence of its own repeats the last.
    const std::int64_t own = first + group->rank();
    const Tensor row = contiguous(narrow(tokens, 0, std::min(own, count - 1), 1));
    const Tensor input = to(row, device), targets = to(next_tokens(row), device);
    Tensor loss;
    if (options.logits.empty()) {
      loss = (*model)(input, targets);
    } else {
      Tensor logits = (*model)(input, Tensor());  // [1, T, V]
      loss = cross_entropy(logits, targets);
      if (ranks > 1) logits = all_gather(std::move(logits), *group, ranks);
      const std::int64_t kept = std::min(ranks, count - first);
      if (out) {
        logits = to(std::move(logits), Device::cpu());
        out->write({static_cast<const std::byte*>(logits.raw()),
                    static_cast<std::size_t>(logits.bytes() / logits.size(0) * kept)});
      }
    }
    if (own < count)
      reads.push({loss}, [&losses, own](std::span<const double> v) { losses[static_cast<std::size_t>(own)] = v[0]; });
  }
  reads.finish();
  together(*group, [&] {
    if (out) out->commit();
  });
  const FlatPart part{losses.data(), DType::f64, count};
  if (ranks > 1) group->host().all_reduce({&part, 1}, {});  // all but one term of a sum are 0
  double sum = 0;
  for (const double loss : losses) sum += loss;
  return sum / static_cast<double>(count);
}

}  // namespace

int run_eval(std::span<const std::string_view> args) {
  EvalOptions options;
  ConfigTable table;
  table.add("tokens", &options.tokens, "safetensors file with i64 `tokens` [sequences, tokens]");
  table.add("logits", &options.logits, "safetensors file to write f32 `logits` [sequences, tokens, vocabulary] to");
  table.add("threads", &options.threads, "threads per rank; 0: the allowed CPUs shared among the ranks");
  table.add("device", &options.device, kDeviceHelp);
  const auto words = read_command_line(table, args,
                                       "sherd eval DIR --tokens FILE [flags]: prints the mean next-token loss (nats) "
                                       "of the model in DIR, a checkpoint or a Hugging Face directory");
  if (!words) return 0;
  check_usage(words->size() == 1, "sherd eval takes one folder, got {} words", words->size());
  check_usage(!options.tokens.empty(), "sherd eval needs --tokens FILE, a safetensors file with i64 \"tokens\"");
  as_usage([&] { return parse_device(options.device); });
  options.dir = words->front();

  const std::shared_ptr<ProcessGroup> group = world_group();
  try {
    const CpuShare cpus = share_cpus(*group, options.threads);
    set_threads(cpus.threads);
    if (group->rank() == 0) fmt::print(stderr, "{}", cpus.lines());
    const double loss = evaluate(options, group);
    if (group->rank() == 0) fmt::print("loss {:.8f}\n", loss);
  } catch (const std::exception& error) {
    group->abort(error.what());  // peers stop waiting at once and quote the reason
    throw;
  }
  return 0;
}

}  // namespace sherd
