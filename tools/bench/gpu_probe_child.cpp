// `--child gpu_probe NAME`: one thing that is true of every card, or is not of this one; prints one JSON object. Each
// is a process of its own, so that a card lost to one probe is whole for the next. A probe that finds a wrong answer
// fails.
#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>

#include "runtime/autograd/autograd.h"
#include "runtime/exec/context.h"
#include "runtime/op/core/device_library.h"
#include "runtime/op/core/dispatch.h"
#include "runtime/op/core/rows.h"
#include "runtime/op/rows/index_attrs.h"
#include "runtime/op/rows/ops.h"
#include "runtime/tensor/nearest.h"
#include "tools/bench/child.h"
#include "tools/train/flags.h"

namespace sherd::bench {

namespace {

struct ProbeRun {
  DeviceContext& device;
  bool small;

  template <class Work>
  double seconds_of(const Work& work) const {
    device.synchronize();
    const std::chrono::steady_clock::time_point start = std::chrono::steady_clock::now();
    work();
    device.synchronize();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }
  Tensor normal(const Shape& shape, std::string_view name) const {
    return random_normal(shape, random_key(1, name, "probe"), 0, 1, 0, DType::bf16, {}, device.device());
  }
};

nlohmann::json facts() {
  nlohmann::json found;
  for (const BackendFact& fact : cuda_library().backend->facts()) found[fact.name] = fact.value;
  return found;
}

// What the runtime finds wrong in a tensor's values, the commonest mistake of all (a tokenizer larger than the table),
// found by every thread at once. It must be reported, and at once.
nlohmann::json faults(const ProbeRun& run) {
  const std::int64_t n = run.small ? 256 : 1 << 20;
  const Tensor table = run.normal({8, 16}, "table");
  const Tensor ids = full({n}, 9, DType::i32, run.device.device());
  run.device.synchronize();
  const std::chrono::steady_clock::time_point start = std::chrono::steady_clock::now();
  std::string text;
  try {
    const Tensor rows = embedding(table, ids);
    run.device.synchronize();
  } catch (const Error& error) { text = error.what(); }
  check(text.find("is outside of") != std::string::npos, "{} ids outside of the table were not reported: \"{}\"", n,
        text);
  return {{"bad_ids", n}, {"seconds", std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count()}};
}

// A product of cuBLASLt and an attention of cuDNN, recorded into one graph, against the same calls outside of it.
nlohmann::json graph(const ProbeRun& run) {
  const std::int64_t t = run.small ? 16 : 512, k = run.small ? 16 : 128, d = 4 * k;
  const Tensor x = run.normal({t, d}, "x"), w = run.normal({d, d}, "w");
  Tensor out;
  const auto work = [&] {
    const GradMode off(false);
    const Tensor q = transpose(reshape(matmul(x, w), {1, t, 4, k}), 1, 2);
    out = scaled_dot_product_attention(q, q, q);
  };
  work();
  const std::vector<float> eager = to(cast(out, DType::f32), Device::cpu()).to_vector<float>();
  out = {};
  const std::unique_ptr<DeviceGraph> recorded = run.device.record(work);
  recorded->launch();
  recorded->launch();
  const std::vector<float> replayed = to(cast(out, DType::f32), Device::cpu()).to_vector<float>();
  double apart = 0;
  for (std::size_t i = 0; i < eager.size(); ++i)
    apart = std::max(apart, static_cast<double>(std::abs(eager[i] - replayed[i])));
  check(apart == 0, "a recorded product and attention differ by {} from the same calls outside of the graph", apart);
  return {{"nodes", recorded->num_nodes()}, {"difference", apart}, {"cuDNN", facts()["cuDNN"]}};
}

// Small ops one after the other, queued and as one graph: what a launch costs at least, on the host and on the device.
nlohmann::json launches(const ProbeRun& run) {
  const int calls = run.small ? 20 : 1000;
  Tensor x = run.normal({32}, "x");
  const auto work = [&] {
    const GradMode off(false);
    Tensor y = x;
    for (int i = 0; i < calls; ++i) y = add(y, x);
  };
  run.seconds_of(work);
  std::chrono::steady_clock::time_point queued;
  const std::chrono::steady_clock::time_point start = std::chrono::steady_clock::now();
  const double eager = run.seconds_of([&] {
    work();
    queued = std::chrono::steady_clock::now();
  });
  const std::unique_ptr<DeviceGraph> recorded = run.device.record(work);
  recorded->launch();
  const double graph = run.seconds_of([&] { recorded->launch(); });
  const auto us = [&](double seconds) { return seconds / calls * 1e6; };
  return {{"calls", calls},
          {"us_to_queue", us(std::chrono::duration<double>(queued - start).count())},
          {"us_queued_one_by_one", us(eager)},
          {"us_in_a_graph", us(graph)},
          {"graph_nodes", recorded->num_nodes()}};
}

// Tensors between the host and the device as users move them: through staging memory.
nlohmann::json transfers(const ProbeRun& run) {
  const std::int64_t bytes = run.small ? 1 << 16 : 1 << 28;
  const Tensor host = full({bytes / 4}, 1, DType::f32);
  Tensor there = to(host, run.device.device()), back;
  const double up = run.seconds_of([&] { there = to(host, run.device.device()); });
  const double down = run.seconds_of([&] { back = to(there, Device::cpu()); });
  const auto rate = [&](double seconds) { return static_cast<double>(bytes) / seconds / 1e9; };
  return {{"bytes", bytes}, {"to_device_gb_per_second", rate(up)}, {"to_host_gb_per_second", rate(down)}};
}

// The gradient of an embedding's table, for which ids are sorted: of ids that differ, of as many that are one
// (padding), and of 64 times as many.
nlohmann::json embedding_gradient(const ProbeRun& run) {
  const std::int64_t rows = run.small ? 64 : 128256, width = run.small ? 8 : 64, few = run.small ? 32 : 16384;
  const auto microseconds = [&](std::int64_t n, std::int64_t different) {
    const std::uint64_t key = random_key(1, "ids", "probe");
    const Tensor ids =
        cast(random_uniform({n}, key, 0, static_cast<double>(different), 0, DType::f32, {}, run.device.device()),
             DType::i32);
    const Tensor grad = run.normal({n, width}, "grad");
    const auto work = [&] {
      const GradMode off(false);
      std::vector<Tensor> in{grad, ids};
      (void)call_op(op::embedding_backward, in, EmbeddingAttrs{.rows = rows});
    };
    work();
    return run.seconds_of(work) * 1e6;
  };
  const double different = microseconds(few, rows), one = microseconds(few, 1), many = microseconds(64 * few, rows);
  return {{"us_of_different_ids", different},
          {"us_of_one_id", one},
          {"us_of_64_times_as_many", many},
          {"one_id_factor", one / different},
          {"many_ids_factor", many / different}};
}

// The libraries as they were found, and the device.
nlohmann::json backend(const ProbeRun&) { return {{"facts", facts()}}; }

struct Probe {
  std::string_view name;
  nlohmann::json (*run)(const ProbeRun& run);
};
constexpr std::array kProbes = {Probe{"backend", backend},   Probe{"embedding", embedding_gradient},
                                Probe{"faults", faults},     Probe{"graph", graph},
                                Probe{"launches", launches}, Probe{"transfers", transfers}};

}  // namespace

int run_gpu_probe_child(std::span<const std::string_view> args) {
  bool small = false;
  ConfigTable table;
  table.add("small", &small, "tiny sizes");
  const CommandLine line = parse_command_line(table, args);
  apply_flags(table, line);
  check(line.words.size() == 1, "gpu_probe takes one name of a probe, got {} words", line.words.size());
  std::vector<std::string> names;
  for (const Probe& probe : kProbes) {
    names.emplace_back(probe.name);
    if (probe.name != line.words[0]) continue;
    ProbeRun run{RankContext::current().device(Device::cuda(0)), small};
    nlohmann::json found = probe.run(run);
    found["device"] = run.device.describe();
    fmt::print("{}\n", found.dump());
    return 0;
  }
  fail("there is no probe \"{}\"{}", line.words[0], did_you_mean(line.words[0], names));
}

}  // namespace sherd::bench
