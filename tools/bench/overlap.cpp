// overlap.*: exposed communication of a fully sharded model, when the link between the ranks takes half of the compute
// time. No schedule can hide the first gather and the last reduction: of the 3 L - 1 transfers of L equal units (L
// gathers forward, L - 1 backward, L reductions) 2 are exposed.
#include <fmt/format.h>

#include "runtime/tensor/error.h"
#include "tools/bench/bench.h"
#include "tools/bench/child.h"
#include "tools/bench/models.h"

namespace sherd::bench {

namespace {

constexpr std::string_view kModel = "blocks16";
constexpr int kRanks = 2;

struct Pace {
  double bytes_per_second;  ///< of the link
  double comm_seconds;      ///< per step on that link
};

// Without a link first: a step's computing is what that step does not wait. The link then takes half as long.
Pace half_of_compute(BenchRun& run, const std::string& model, const std::string& captured) {
  const Outcome& outcome = run.shared("overlap pace " + captured, [&] {
    return Contest{.ours = {child("step", {"--model", model, "--captured", captured}, kRanks), "4"},
                   .rounds = run.sized(2, 1)};
  });
  const double compute = outcome.ours.median("/computing_seconds");
  const double received = outcome.ours.median("/comm_bytes") * (kRanks - 1) / kRanks;
  return {received / (compute / 2), compute / 2};
}

Benchmark overlap_benchmark(const std::string& name, bool captured, bool prefetch, Target target) {
  Benchmark row;
  row.name = "overlap." + name;
  row.summary =
      "exposed share of communication, 16 blocks on 2 ranks, a link that takes half of the compute time; limit: floor";
  row.unit = {"% exposed", Better::lower, 1};
  row.target = target;
  row.measure = [flag = std::string(captured ? "true" : "false"), prefetch](Figure& figure, BenchRun& run) {
    const std::string model(run.sized<std::string_view>(kModel, "tiny"));
    const Pace pace = half_of_compute(run, model, flag);
    const Outcome outcome =
        run.hold({.ours = {child("step",
                                 {"--model", model, "--link", fmt::format("{},0", pace.bytes_per_second), "--prefetch",
                                  prefetch ? "true" : "false", "--captured", flag},
                                 kRanks),
                           "4"},
                  .rounds = run.sized(5, 1)});
    const auto units = static_cast<double>(bench_model(model).layers);
    fill_by(figure, outcome,
            [&](const Answers& side) { return 100 * side.median("/exposed_seconds") / pace.comm_seconds; });
    figure.limit = 100 * 2 / (3 * units - 1);
    const double skew = outcome.ours.median("/skew_seconds");
    figure.detail["exposed_skew_ms"] = skew * 1e3;
    figure.detail["exposed_transfer_ms"] = (outcome.ours.median("/exposed_seconds") - skew) * 1e3;
    figure.detail["step_ms"] = outcome.ours.median() * 1e3;
    figure.detail["compute_ms"] = 2e3 * pace.comm_seconds;
    figure.detail["communication_ms"] = 1e3 * pace.comm_seconds;
    figure.detail["link_megabytes_per_second"] = pace.bytes_per_second / 1e6;
  };
  return row;
}

}  // namespace

std::vector<Benchmark> overlap_benchmarks() {
  return {
      overlap_benchmark("prefetch_on", true, true, {Rule::value_at_most, 100 * 2.0 / 47 + 3}),
      overlap_benchmark("prefetch_off", true, false, {}),
      overlap_benchmark("eager", false, true, {}),
  };
}

}  // namespace sherd::bench
