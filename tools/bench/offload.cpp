// offload.*: what a step pays for optimizer state in a file, by the file's rate. At twice the rate that moves a step's
// bytes in a step's compute, transfers are to hide behind it; at half of it, compute behind the transfers. With
// clipping updates begin when the last gradient is there, so transfers are exposed but for what updates hide.
#include <fmt/format.h>

#include <algorithm>

#include "tools/bench/bench.h"
#include "tools/bench/child.h"

namespace sherd::bench {

namespace {

struct OffloadCase {
  const char *name, *speed;  ///< of the file, as a multiple of that rate
  bool clips;
  Target target;
};

const Outcome& offload_outcome(const OffloadCase& c, BenchRun& run) {
  return run.shared(fmt::format("offload {}", c.name), [&] {
    return Contest{.ours = {child("offload", {"--model", run.sized<std::string>("blocks16", "tiny"), "--steps",
                                              run.sized<std::string>("8", "2"), "--clips", c.clips ? "true" : "false"}),
                            c.speed},
                   .rounds = run.sized(3, 1)};
  });
}

// Percentage of a step's transfers that hides behind its compute.
double hidden_share(const Answers& side) {
  const double exposed = side.median() - side.median("/compute_seconds");
  return 100 * (1 - std::max(exposed, 0.0) / side.median("/transfer_seconds"));
}
double of_transfers(const Answers& side) { return side.median() / side.median("/transfer_seconds"); }

Benchmark offload_benchmark(const OffloadCase& c, std::string summary, Unit unit, double (*value_of)(const Answers&)) {
  Benchmark row;
  row.name = fmt::format("offload.{}", c.name);
  row.summary = std::move(summary);
  row.unit = unit;
  row.target = c.target;
  row.measure = [c, value_of](Figure& figure, BenchRun& run) {
    const Outcome& outcome = offload_outcome(c, run);
    fill_by(figure, outcome, value_of);
    const nlohmann::json& answer = outcome.ours.answers.back();
    for (const char* key : {"bytes", "compute_seconds", "transfer_seconds"}) figure.detail[key] = answer.at(key);
    figure.detail["step_seconds"] = outcome.ours.median();
    // Nothing can be faster than the longer of the two; nothing hidden is their sum.
    figure.detail["formula_seconds"] = {
        std::max(answer.at("compute_seconds").get<double>(), answer.at("transfer_seconds").get<double>()),
        answer.at("compute_seconds").get<double>() + answer.at("transfer_seconds").get<double>()};
  };
  return row;
}

}  // namespace

std::vector<Benchmark> offload_benchmarks() {
  return {
      offload_benchmark({"fast.hidden", "2", false, {Rule::value_at_least, 80}},
                        "transfers of optimizer state hidden, file at twice the needed rate", {"%", Better::higher},
                        hidden_share),
      offload_benchmark({"slow.step", "0.5", false, {Rule::value_at_most, 1.1}},
                        "step beside its transfers alone, file at half of the needed rate", {"x", Better::lower, 2},
                        of_transfers),
      offload_benchmark({"clipped.hidden", "2", true, {}},
                        "transfers hidden where gradients are clipped, file at twice the needed rate",
                        {"%", Better::higher}, hidden_share),
  };
}

}  // namespace sherd::bench
