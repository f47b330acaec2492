// What a child does on a GPU, the first CUDA device.
#include <algorithm>
#include <cmath>

#include "runtime/autograd/autograd.h"
#include "runtime/exec/context.h"
#include "runtime/op/core/device_library.h"
#include "runtime/op/core/dispatch.h"
#include "runtime/op/core/rows.h"
#include "runtime/op/rows/index_attrs.h"
#include "runtime/op/rows/ops.h"
#include "runtime/tensor/indices.h"
#include "tools/bench/child.h"
#include "tools/bench/gpu_ops.h"
#include "tools/bench/profiler_range.h"

namespace sherd::bench {

namespace {

using nlohmann::json;

template <class Do>
double seconds_on(DeviceContext& device, const Do& work) {
  device.synchronize();
  return seconds_of([&] {
    work();
    device.synchronize();
  });
}

// `gpu_op [--small true] [--profile true]`: op calls. A request is "NAME CALLS" of gpu_ops.h, or "matmul NN|NT|TN M N K
// CALLS" for bf16 products. The calls are queued together and waited for once; the sample is their mean. Of short calls
// that is how fast the host queues them, so those are recorded into one graph, which is timed; "how" says which. With
// --profile a profiler that waits records the calls that are asked for, and only those.

// Row-major operands as they are stored: NN a [M, K] b [K, N]; NT b [N, K]; TN a [K, M].
std::function<void()> product(const Asked& of, Device device) {
  const std::string& kind = of.words[0];
  const std::int64_t m = of.numbers[0], n = of.numbers[1], k = of.numbers[2];
  const auto operand = [&](std::int64_t rows, std::int64_t columns, bool transposed, std::string_view name) {
    const Shape stored = transposed ? Shape{columns, rows} : Shape{rows, columns};
    const Tensor t = random_normal(stored, random_key(1, name, "bench"), 0, 1, 0, DType::bf16, {}, device);
    return transposed ? transpose(t, 0, 1) : t;
  };
  return [a = operand(m, k, kind[0] == 'T', "a"), b = operand(k, n, kind[1] == 'T', "b")] {
    const GradMode off(false);
    (void)matmul(a, b);
  };
}

// Below this a call is no longer than what the host takes to queue it.
constexpr double kShortSeconds = 100e-6;

json recorded(DeviceContext& device, const std::function<void()>& all_calls, double calls, double eager_seconds) {
  std::unique_ptr<DeviceGraph> graph;
  try {
    graph = device.record(all_calls);
  } catch (const Error& error) {
    return {{"seconds", {eager_seconds}}, {"how", fmt::format("queued one by one: {}", error.what())}};
  }
  graph->launch();
  const double seconds = seconds_on(device, [&] { graph->launch(); }) / calls;
  return {{"seconds", {seconds}}, {"how", "one graph"}, {"eager_seconds", eager_seconds}};
}

json answer_of(const std::string& request, DeviceContext& device, bool small, bool profile) {
  const std::string name = request.substr(0, request.find(' '));
  const bool is_product = name == "matmul";
  const Asked of = asked(request.substr(name.size()), is_product ? "NN|NT|TN M N K CALLS" : "CALLS");
  const std::function<void()> call =
      is_product ? product(of, device.device()) : gpu_op(name).prepare(device.device(), small);
  const auto calls = static_cast<double>(of.numbers.back());
  for (int i = 0; i < 3; ++i) call();  // choices of algorithms, memory
  const auto all_calls = [&] {
    for (int i = 0; i < calls; ++i) call();
  };
  if (profile) {
    device.synchronize();
    const ProfilerRange range;
    json answer = {{"seconds", {seconds_on(device, all_calls) / calls}}, {"how", "profiled"}};
    if (!range.why_not().empty()) answer["not_profiled"] = range.why_not();
    return answer;
  }
  const double seconds = seconds_on(device, all_calls) / calls;
  if (seconds > kShortSeconds && !small) return {{"seconds", {seconds}}, {"how", "queued one by one"}};
  return recorded(device, all_calls, calls, seconds);
}

Ready begin_gpu_op(std::span<const std::string_view> args) {
  bool small = false, profile = false;
  take_flags(args, {{"small", &small}, {"profile", &profile}});
  DeviceContext& device = RankContext::current().device(Device::cuda(0));
  return {{{"peer", "sherd"}, {"device", device.describe()}},
          [&device, small, profile](const std::string& request) { return answer_of(request, device, small, profile); }};
}

// `gpu_probe [--small true] NAME`: one thing that is true of every card, or is not of this one; prints one JSON object.
// Each is a process of its own, so that a card lost to one probe is whole for the next. A probe that finds a wrong
// answer fails.
struct ProbeRun {
  DeviceContext& device;
  bool small;

  Tensor normal(const Shape& shape, std::string_view name) const {
    return random_normal(shape, random_key(1, name, "probe"), 0, 1, 0, DType::bf16, {}, device.device());
  }
};

json facts() {
  json found;
  for (const BackendFact& fact : cuda_library().backend->facts()) found[fact.name] = fact.value;
  return found;
}

// What the runtime finds wrong in a tensor's values, the commonest mistake of all (a tokenizer larger than the table),
// found by every thread at once. It must be reported, and at once.
json faults(const ProbeRun& run) {
  const std::int64_t n = run.small ? 256 : 1 << 20;
  const Tensor table = run.normal({8, 16}, "table");
  const Tensor ids = full({n}, 9, DType::i32, run.device.device());
  std::string text;
  const double seconds = seconds_on(run.device, [&] {
    try {
      const Tensor rows = embedding(table, ids);
      run.device.synchronize();
    } catch (const Error& error) { text = error.what(); }
  });
  check(text.find("is outside of") != std::string::npos, "{} ids outside of the table were not reported: \"{}\"", n,
        text);
  return {{"bad_ids", n}, {"seconds", seconds}};
}

// A product of cuBLASLt and an attention of cuDNN, recorded into one graph, against the same calls outside of it.
json graph(const ProbeRun& run) {
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
  for (const std::size_t i : indices(eager))
    apart = std::max(apart, static_cast<double>(std::abs(eager[i] - replayed[i])));
  check(apart == 0, "a recorded product and attention differ by {} from the same calls outside of the graph", apart);
  return {{"nodes", recorded->num_nodes()}, {"difference", apart}, {"cuDNN", facts()["cuDNN"]}};
}

// Small ops one after the other, queued and as one graph: what a launch costs at least, on the host and on the device.
json launches(const ProbeRun& run) {
  const int calls = run.small ? 20 : 1000;
  Tensor x = run.normal({32}, "x");
  const auto work = [&] {
    const GradMode off(false);
    Tensor y = x;
    for (int i = 0; i < calls; ++i) y = add(y, x);
  };
  seconds_on(run.device, work);
  double queued = 0;
  const double eager = seconds_on(run.device, [&] { queued = seconds_of(work); });
  const std::unique_ptr<DeviceGraph> recorded = run.device.record(work);
  recorded->launch();
  const double graph = seconds_on(run.device, [&] { recorded->launch(); });
  const auto us = [&](double seconds) { return seconds / calls * 1e6; };
  return {{"calls", calls},
          {"us_to_queue", us(queued)},
          {"us_queued_one_by_one", us(eager)},
          {"us_in_a_graph", us(graph)},
          {"graph_nodes", recorded->num_nodes()}};
}

// Tensors between the host and the device as users move them: through staging memory.
json transfers(const ProbeRun& run) {
  const std::int64_t bytes = run.small ? 1 << 16 : 1 << 28;
  const Tensor host = full({bytes / 4}, 1, DType::f32);
  Tensor there = to(host, run.device.device()), back;
  const double up = seconds_on(run.device, [&] { there = to(host, run.device.device()); });
  const double down = seconds_on(run.device, [&] { back = to(there, Device::cpu()); });
  const auto rate = [&](double seconds) { return static_cast<double>(bytes) / seconds / 1e9; };
  return {{"bytes", bytes}, {"to_device_gb_per_second", rate(up)}, {"to_host_gb_per_second", rate(down)}};
}

// The gradient of an embedding's table, for which ids are sorted: of ids that differ, of as many that are one
// (padding), and of 64 times as many.
json embedding_gradient(const ProbeRun& run) {
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
    return seconds_on(run.device, work) * 1e6;
  };
  const double different = microseconds(few, rows), one = microseconds(few, 1), many = microseconds(64 * few, rows);
  return {{"us_of_different_ids", different},
          {"us_of_one_id", one},
          {"us_of_64_times_as_many", many},
          {"one_id_factor", one / different},
          {"many_ids_factor", many / different}};
}

// The libraries as they were found, and the device.
json backend(const ProbeRun&) { return {{"facts", facts()}}; }

struct Probe {
  std::string_view name;
  json (*run)(const ProbeRun& run);
};
constexpr Probe kProbes[] = {{"backend", backend},   {"embedding", embedding_gradient},
                             {"faults", faults},     {"graph", graph},
                             {"launches", launches}, {"transfers", transfers}};

Ready begin_gpu_probe(std::span<const std::string_view> args) {
  bool small = false;
  const std::vector<std::string> words = take_flags(args, {{"small", &small}});
  check(words.size() == 1, "gpu_probe takes one name of a probe, got {} words", words.size());
  const Probe* const probe = std::ranges::find(kProbes, words[0], &Probe::name);
  check(probe != std::end(kProbes), "there is no probe \"{}\"{}", words[0], did_you_mean(words[0], kProbes));
  const ProbeRun run{RankContext::current().device(Device::cuda(0)), small};
  json found = probe->run(run);
  found["device"] = run.device.describe();
  return {found, {}};
}

constexpr Works::value_type kGpuWorks[] = {{"gpu_op", begin_gpu_op}, {"gpu_probe", begin_gpu_probe}};

}  // namespace

Works gpu_works() { return kGpuWorks; }

}  // namespace sherd::bench
