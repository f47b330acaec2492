// `sherd eval DIR --tokens FILE [--logits OUT.safetensors]`, or `--data TEXT`: the mean next-token loss of a model over
// given tokens. Ranks take the batches in turn, over a sharded model. A batch is one forward, so that neither the loss
// nor a logit depends on the number of ranks.
#include <algorithm>

#include "nn/parallel/shard/wrap/fully_shard.h"
#include "runtime/autograd/autograd.h"
#include "runtime/comm/group/agree.h"
#include "runtime/comm/group/host_group.h"
#include "runtime/comm/job/group_choice.h"
#include "runtime/comm/job/world.h"
#include "runtime/cpu/parallel.h"
#include "runtime/op/core/host_reads.h"
#include "runtime/op/rows/ops.h"
#include "tools/cli/command.h"
#include "tools/cli/cpu_share.h"
#include "tools/cli/eval_input.h"
#include "tools/train/exit_status.h"
#include "tools/train/flags.h"
#include "tools/train/output_file.h"
#include "tools/train/weights.h"

namespace sherd {

namespace {

struct EvalOptions {
  std::string dir, tokens, data, vocabulary = "auto", logits;
  std::int64_t threads = 0;
  Device device = Device::cpu();
  GroupChoice group = "auto";
};

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

EvalInput open_input(const EvalOptions& options, const Weights& weights) {
  return options.data.empty() ? token_file(options.tokens, weights)
                              : text_windows(options.data, weights, options.vocabulary);
}

/// The mean over all sequences, in words. Writes the logits [sequences, T, V] if `options.logits` names a file.
std::string evaluate(const EvalOptions& options, const std::shared_ptr<ProcessGroup>& host) {
  Device device;
  together(*host, [&] { device = open_device(options.device, *host); });
  const std::shared_ptr<ProcessGroup> group = chosen_group(host, device, options.group).group;
  const Weights weights(options.dir, *group);
  EvalInput input;
  std::optional<ckpt::SafetensorsWriter> out;
  together(*group, [&] {
    input = open_input(options, weights);
    const ckpt::TensorInfo info{"logits", DType::f32, {input.shape[0], input.shape[1], weights.model().vocabulary}};
    if (!options.logits.empty() && group->rank() == 0) out.emplace(options.logits, std::span(&info, 1));
  });
  const auto model = make_loaded(weights, device, group);
  GradMode off(false);
  const std::int64_t ranks = group->size(), count = input.batches;
  std::vector<double> losses(static_cast<std::size_t>(count), 0.0);  // each times the sequences of its batch
  HostReads reads;
  for (std::int64_t first = 0; first < count; first += ranks) {
    // Forwards gather, so all ranks run equally many: one without a batch of its own repeats the last.
    const std::int64_t own = first + group->rank();
    auto [tokens, targets] = input.at(std::min(own, count - 1));
    const auto sequences = static_cast<double>(tokens.size(0));
    tokens = to(std::move(tokens), device), targets = to(std::move(targets), device);
    Tensor loss;
    if (options.logits.empty()) {
      loss = (*model)(tokens, targets);
    } else {
      Tensor logits = (*model)(tokens, Tensor());  // [1, T, V]
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
      reads.push({loss}, [&losses, own, sequences](std::span<const double> v) {
        losses[static_cast<std::size_t>(own)] = v[0] * sequences;
      });
  }
  reads.finish();
  together(*group, [&] {
    if (out) out->commit();
  });
  // All but one term of a sum are 0.
  if (ranks > 1) group->host().all_reduce({in_place(losses.data(), DType::f64, count)}, {});
  double sum = 0;
  for (const double loss : losses) sum += loss;
  return fmt::format("loss {:.8f}{}\n", sum / static_cast<double>(input.shape[0]), input.over);
}

void check_flags(const EvalOptions& options) {
  check_usage(options.tokens.empty() != options.data.empty(),
              "sherd eval needs {} of --tokens FILE, a safetensors file with i64 \"tokens\", and --data TEXT",
              options.data.empty() ? "one" : "only one");
  check_usage(options.data.empty() || options.logits.empty(), "--logits goes with --tokens, and not with --data");
  check_usage(options.tokens.empty() || options.vocabulary == "auto",
              "--vocabulary {} goes with --data, and not with --tokens", options.vocabulary);
  check_usage(options.group.kind() != GroupChoice::Kind::thread,
              "sherd eval --group thread: its ranks are processes; leave it out");
  if (options.vocabulary != "auto") as_usage([&] { return vocabulary_kind_from_name(options.vocabulary); });
  const FileOfKey read[] = {{"tokens", options.tokens}}, written[] = {{"logits", options.logits}};
  check_apart(read, written);
  constexpr std::int64_t kHeader = 8;  // of a safetensors file, behind its length
  if (!options.logits.empty()) check_replaceable(options.logits, "logits", "{\"logits\"", kHeader);
}

}  // namespace

int run_eval(std::span<const std::string_view> args) {
  EvalOptions options;
  ConfigTable table;
  table.add("tokens", &options.tokens, "safetensors file with i64 `tokens` [sequences, tokens]");
  table.add("data", &options.data, "text file or folder, of what the checkpoint was trained on: bytes or characters");
  table.add("vocabulary", &options.vocabulary, "bytes: the data may be any file; else as in DIR");
  table.add("logits", &options.logits, "safetensors file to write f32 `logits` [sequences, tokens, vocabulary] to");
  table.add("threads", &options.threads, "threads per rank; 0: the allowed CPUs shared among the ranks");
  table.add("device", text_field(options.device), kDeviceHelp);
  table.add("group", text_field(options.group), kGroupHelp);
  const auto words = read_command_line(table, args,
                                       "sherd eval DIR --tokens FILE | --data TEXT [flags]: prints the mean next-token "
                                       "loss (nats) of the model in DIR, a checkpoint or, for --tokens, a Hugging Face "
                                       "directory");
  if (!words) return 0;
  check_usage(words->size() == 1, "sherd eval takes one folder, got {} words", words->size());
  check_flags(options);
  options.dir = words->front();

  check_hosts(options.device);
  const std::shared_ptr<ProcessGroup> group = world_group();
  try {
    const CpuShare cpus = share_cpus(*group, options.threads);
    set_threads(cpus.threads);
    if (group->rank() == 0) fmt::print(stderr, "{}", cpus.lines());
    const std::string loss = evaluate(options, group);
    if (group->rank() == 0) fmt::print("{}", loss);
  } catch (const std::exception& error) {
    group->abort(error.what());  // peers stop waiting at once and quote the reason
    throw;
  }
  return 0;
}

}  // namespace sherd
