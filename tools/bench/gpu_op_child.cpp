// `--child gpu_op`: op calls on the first CUDA device. A request is "NAME CALLS" of gpu_ops.h, or "matmul NN|NT|TN M N
// K CALLS" for bf16 products. The calls are queued together and waited for once; the sample is their mean. Of short
// calls that is how fast the host queues them, so those are recorded into one graph, which is timed; "how" says which.
#include <chrono>
#include <sstream>

#include "runtime/autograd/autograd.h"
#include "runtime/exec/context.h"
#include "runtime/op/rows/ops.h"
#include "tools/bench/child.h"
#include "tools/bench/gpu_ops.h"
#include "tools/bench/profiler_range.h"
#include "tools/train/flags.h"

namespace sherd::bench {

namespace {

// Row-major operands as they are stored: NN a [M, K] b [K, N]; NT b [N, K]; TN a [K, M].
std::function<void()> product(std::istringstream& words, Device device) {
  std::string kind;
  std::int64_t m = 0, n = 0, k = 0;
  words >> kind >> m >> n >> k;
  check((kind == "NN" || kind == "NT" || kind == "TN") && m > 0 && n > 0 && k > 0,
        "gpu_op: a product is \"matmul NN|NT|TN M N K CALLS\"");
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

class OpRun {
 public:
  OpRun(bool small, bool profile)
      : context_(RankContext::current().device(Device::cuda(0))), small_(small), profile_(profile) {}
  DeviceContext& context() { return context_; }

  nlohmann::json answer(const std::string& request) {
    std::istringstream words(request);
    std::string name;
    words >> name;
    const std::function<void()> call =
        name == "matmul" ? product(words, context_.device()) : gpu_op(name).prepare(context_.device(), small_);
    int calls = 0;
    words >> calls;
    check(calls > 0, "gpu_op: \"{}\" names no number of calls", request);
    for (int i = 0; i < 3; ++i) call();  // choices of algorithms, memory
    const auto all_calls = [&] {
      for (int i = 0; i < calls; ++i) call();
    };
    if (profile_) return profiled(all_calls, calls);
    const double seconds = seconds_of(all_calls) / calls;
    if (seconds > kShortSeconds && !small_) return {{"seconds", {seconds}}, {"how", "queued one by one"}};
    return recorded(all_calls, calls, seconds);
  }

 private:
  double seconds_of(const std::function<void()>& work) {
    using Clock = std::chrono::steady_clock;
    context_.synchronize();
    const Clock::time_point start = Clock::now();
    work();
    context_.synchronize();
    return std::chrono::duration<double>(Clock::now() - start).count();
  }

  nlohmann::json recorded(const std::function<void()>& all_calls, int calls, double eager_seconds) {
    std::unique_ptr<DeviceGraph> graph;
    try {
      graph = context_.record(all_calls);
    } catch (const Error& error) {
      return {{"seconds", {eager_seconds}}, {"how", fmt::format("queued one by one: {}", error.what())}};
    }
    graph->launch();
    const double seconds = seconds_of([&] { graph->launch(); }) / calls;
    return {{"seconds", {seconds}}, {"how", "one graph"}, {"eager_seconds", eager_seconds}};
  }

  nlohmann::json profiled(const std::function<void()>& all_calls, int calls) {
    context_.synchronize();
    const ProfilerRange range;
    nlohmann::json answer = {{"seconds", {seconds_of(all_calls) / calls}}, {"how", "profiled"}};
    if (!range.why_not().empty()) answer["not_profiled"] = range.why_not();
    return answer;
  }

  DeviceContext& context_;
  const bool small_, profile_;
};

}  // namespace

int run_gpu_op_child(std::span<const std::string_view> args) {
  bool small = false, profile = false;
  ConfigTable table;
  table.add("small", &small, "tiny sizes");
  table.add("profile", &profile, "a profiler that waits records the calls that are asked for, and only those");
  apply_flags(table, parse_command_line(table, args));
  OpRun run(small, profile);
  serve({{"peer", "sherd"}, {"device", run.context().describe()}},
        [&](const std::string& request) { return run.answer(request); });
  return 0;
}

}  // namespace sherd::bench
