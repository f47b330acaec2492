// `--child loss`: losses of a benchmark model from a start that others can read. FOLDER/start.safetensors gets its
// initial parameters under our names and "batches", i32 [steps, B, T + 1]: batch i is what step i trains on. A request
// (any line) trains them all, the answer holds the mean seconds of a step and "losses", one of each step.
//
// A token follows from the one before, 5 x + 17 plus one of four at random, so that there is something to learn: the
// loss goes from ln(vocabulary) towards ln 4.
#include <chrono>
#include <cstring>

#include "nn/checkpoint/format/safetensors.h"
#include "runtime/cpu/parallel.h"
#include "runtime/exec/context.h"
#include "runtime/op/core/host_reads.h"
#include "runtime/op/rows/ops.h"
#include "tools/bench/child.h"
#include "tools/bench/training.h"
#include "tools/train/device_flag.h"
#include "tools/train/flags.h"

namespace sherd::bench {

namespace {

constexpr std::int64_t kMaxSymbols = 256;  // of the vocabulary, those in the text

struct LossFlags {
  std::string model = "tiny", dtype = "f32", device = "cpu", folder;
  std::int64_t steps = 100, threads = 1;
};

// i32 [steps, B, T + 1].
std::vector<std::int32_t> make_batches(const BenchModel& m, std::int64_t steps) {
  const std::int64_t rows = steps * m.batch, columns = m.tokens + 1, symbols = std::min(m.vocabulary, kMaxSymbols);
  const std::vector<float> drawn =
      random_uniform({rows, columns}, random_key(3, "batches", "data", 0), 0, 4).to_vector<float>();
  std::vector<std::int32_t> text(drawn.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool starts = static_cast<std::int64_t>(i) % columns == 0;
    const std::int64_t before = starts ? static_cast<std::int64_t>(i) / columns : text[i - 1];
    text[i] = static_cast<std::int32_t>((5 * before + 17 + static_cast<std::int64_t>(drawn[i])) % symbols);
  }
  return text;
}

template <class T>
std::span<const std::byte> bytes_of(const std::vector<T>& values) {
  return std::as_bytes(std::span(values));
}

// The same seed gives the same bits as in the model that is trained, which may be sharded and on a device.
void write_start(const std::string& path, const BenchModel& m, const std::vector<std::int32_t>& batches,
                 std::int64_t steps) {
  const auto model = make_bench_model(m);
  model->materialize(nn::Seed{1});
  const auto parameters = model->named_parameters();
  std::vector<ckpt::TensorInfo> infos;
  for (const auto& [name, parameter] : parameters) infos.push_back({name, DType::f32, parameter->shape()});
  infos.push_back({"batches", DType::i32, {steps, m.batch, m.tokens + 1}});
  ckpt::SafetensorsWriter writer(path, infos);
  for (const auto& [name, parameter] : parameters) {
    const Tensor& value = parameter->value();
    writer.write({static_cast<const std::byte*>(value.raw()), static_cast<std::size_t>(value.bytes())});
  }
  writer.write(bytes_of(batches));
  writer.commit();
}

nlohmann::json train(TrainStep& step, const BenchModel& m, const Tensor& batches) {
  std::vector<double> losses;
  HostReads reads;
  const auto start = std::chrono::steady_clock::now();
  for (std::int64_t i = 0; i < batches.size(0); ++i) {
    const Tensor text = reshape(narrow(batches, 0, i, 1), {m.batch, m.tokens + 1});
    const Tensor loss =
        step.update(contiguous(narrow(text, 1, 0, m.tokens)), contiguous(narrow(text, 1, 1, m.tokens))).loss;
    reads.push({loss}, [&](std::span<const double> value) { losses.push_back(value[0]); });
  }
  reads.finish();
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return {{"seconds", {seconds / static_cast<double>(batches.size(0))}}, {"losses", losses}};
}

}  // namespace

int run_loss_child(std::span<const std::string_view> args) {
  LossFlags flags;
  ConfigTable table;
  table.add("model", &flags.model, "one of models.cpp");
  table.add("dtype", &flags.dtype, "f32, or bf16 or f16 by mixed precision; f16 with a loss scale");
  table.add("device", &flags.device, "cpu, or cuda for the first GPU");
  table.add("threads", &flags.threads, "of the host");
  table.add("steps", &flags.steps, "batches in the file");
  table.add("folder", &flags.folder, "where start.safetensors is written");
  apply_flags(table, parse_command_line(table, args));
  check(flags.steps >= 1, "--steps must be positive, got {}", flags.steps);
  check(!flags.folder.empty(), "--folder is missing");
  set_threads(static_cast<int>(flags.threads));

  const BenchModel& m = bench_model(flags.model);
  const std::vector<std::int32_t> batches = make_batches(m, flags.steps);
  write_start(flags.folder + "/start.safetensors", m, batches, flags.steps);
  const Device device = parse_device(flags.device);
  TrainStep step = train_step(
      m, {.device = parse_device(flags.device), .param_dtype = dtype_from_name(flags.dtype), .compiled = true},
      make_single_group());
  const Tensor text = to(Tensor::from<std::int32_t>(batches, {flags.steps, m.batch, m.tokens + 1}), device);
  nlohmann::json greeting = {{"peer", "sherd"}};
  if (device != Device::cpu()) greeting["device"] = RankContext::current().device(device).describe();
  serve(greeting, [&](const std::string&) { return train(step, m, text); });
  return 0;
}

}  // namespace sherd::bench
