// `--child dtensor`: a request is "hit WINDOWS" or "miss CALLS"; each sample is what a call on distributed tensors
// takes more than the same call on plain tensors of the local shape, of the row for which that is most. The mesh has
// two ranks, of which this is the first; the calls need no communication, so the other never comes.
#include <chrono>
#include <functional>
#include <sstream>

#include "dtensor/propagate.h"
#include "dtensor/spec.h"
#include "runtime/autograd/autograd.h"
#include "runtime/comm/board/thread_group.h"
#include "runtime/op/rows/ops.h"
#include "tools/bench/child.h"
#include "tools/bench/contest.h"

namespace sherd::bench {

namespace {

constexpr int kCalls = 500;  // of a window: some hundred microseconds

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

struct Operands {
  Tensor a, b;
};

struct Row {
  const char* name;
  Operands (*make)(const DeviceMesh& mesh, std::int64_t n);  ///< distributed; n: a size that tells calls apart
  Tensor (*call)(const Operands& of);
};

Tensor distributed_ones(const DeviceMesh& mesh, const Shape& shape, Placement placement) {
  const Spec* spec = Spec::of(mesh, placement);
  return Tensor::distributed(shape, spec, ones(spec->local_shape(shape)));
}

constexpr Row kRows[] = {
    {"add",
     [](const DeviceMesh& mesh, std::int64_t n) {
       return Operands{distributed_ones(mesh, {2, n}, Shard(0)), distributed_ones(mesh, {2, n}, Shard(0))};
     },
     [](const Operands& of) { return add(of.a, of.b); }},
    {"mul",
     [](const DeviceMesh& mesh, std::int64_t n) {
       return Operands{distributed_ones(mesh, {2, n}, Shard(0)), distributed_ones(mesh, {2, n}, Shard(0))};
     },
     [](const Operands& of) { return mul(of.a, of.b); }},
    {"linear",
     [](const DeviceMesh& mesh, std::int64_t n) {
       return Operands{distributed_ones(mesh, {1, n}, Replicate()), distributed_ones(mesh, {8, n}, Shard(0))};
     },
     [](const Operands& of) { return linear(of.a, of.b); }},
};

Operands local(const Operands& of) { return {of.a.local(), of.b.local()}; }

double seconds_per_call(const Row& row, const Operands& of) {
  const std::chrono::steady_clock::time_point start = std::chrono::steady_clock::now();
  for (int i = 0; i < kCalls; ++i) Tensor result = row.call(of);
  return seconds_since(start) / kCalls;
}

struct Samples {
  std::vector<double> distributed, plain, extra;
  void add(double of_distributed, double of_plain) {
    if (of_distributed <= of_plain) return;  // the plain window was disturbed: no answer is 0 seconds
    distributed.push_back(of_distributed);
    plain.push_back(of_plain);
    extra.push_back(of_distributed - of_plain);
  }
};

// Windows take turns, so that what disturbs one disturbs the other.
Samples hits(const Row& row, const DeviceMesh& mesh, int windows) {
  const Operands operands = row.make(mesh, 4), plain = local(operands);
  seconds_per_call(row, operands), seconds_per_call(row, plain);
  Samples samples;
  const std::int64_t made = plan_counts().made;
  for (int w = 0; w < windows; ++w) {
    const double of_distributed = seconds_per_call(row, operands);
    samples.add(of_distributed, seconds_per_call(row, plain));
  }
  check(plan_counts().made == made, "{} made a plan at a call that was known", row.name);
  return samples;
}

// Every call has sizes that were not seen before.
Samples misses(const Row& row, const DeviceMesh& mesh, int calls) {
  static std::int64_t n = 4;
  Samples samples;
  for (int i = 0; i < calls; ++i) {
    const Operands operands = row.make(mesh, ++n), plain = local(operands);
    const std::int64_t made = plan_counts().made;
    std::chrono::steady_clock::time_point start = std::chrono::steady_clock::now();
    Tensor result = row.call(operands);
    const double of_distributed = seconds_since(start);
    check(plan_counts().made == made + 1, "{} found a plan at a call that is new", row.name);
    start = std::chrono::steady_clock::now();
    result = row.call(plain);
    samples.add(of_distributed, seconds_since(start));
  }
  return samples;
}

}  // namespace

int run_dtensor_child(std::span<const std::string_view> args) {
  check(args.empty(), "the child dtensor takes no flags");
  const GradMode off(false);
  const auto groups = make_thread_groups(2);
  const DeviceMesh mesh(groups[0]);
  serve({{"peer", "sherd"}}, [&](const std::string& request) -> nlohmann::json {
    std::istringstream words(request);
    std::string kind;
    int count = 0;
    words >> kind >> count;
    check((kind == "hit" || kind == "miss") && count >= 1, "dtensor: \"{}\" is not hit|miss COUNT", request);
    nlohmann::json answer;
    double worst = 0;
    for (const Row& row : kRows) {
      const Samples samples = kind == "hit" ? hits(row, mesh, count) : misses(row, mesh, count);
      check(!samples.extra.empty(), "{}: something disturbed every window; leave the machine alone meanwhile",
            row.name);
      const double extra = median(samples.extra);
      answer["rows"][row.name] = {
          {"extra", extra}, {"distributed", median(samples.distributed)}, {"plain", median(samples.plain)}};
      if (extra <= worst) continue;
      worst = extra;
      answer["seconds"] = samples.extra;
    }
    return answer;
  });
  return 0;
}

}  // namespace sherd::bench
