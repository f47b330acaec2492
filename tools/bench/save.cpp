// save.*: a gibibyte of state of one rank, on the disk of the temporary folder (TMPDIR). The limit of a save is the
// same bytes written to one file, with the same checksums, and synced; the peer is torch.distributed.checkpoint, which
// computes none. Disks of shared machines are what they are: figures of one run belong together.
#include <algorithm>

#include <fmt/format.h>

#include "tools/bench/bench.h"
#include "tools/bench/child.h"

namespace sherd::bench {

namespace {

SideCommand side(BenchRun& run) { return child("save", {"--tensors", run.sized<std::string>("16", "1")}); }

std::vector<Contestant> torches(BenchRun& run, const std::string& request) {
  return run.torch_contestants("save.py", {run.sized<std::string>("16", "1")}, request);
}

Benchmark disk_benchmark(const char* request, std::string summary, Target target, bool has_limit) {
  Benchmark row;
  row.name = fmt::format("save.{}", request);
  row.summary = std::move(summary);
  row.unit = {"ms", Better::lower, 0};
  row.target = target;
  row.measure = [request, has_limit](Figure& figure, BenchRun& run) {
    Contest contest{.ours = {side(run), request}, .peers = torches(run, request), .rounds = run.sized(5, 1)};
    if (has_limit) contest.limit = Contestant{side(run), "plain"};
    const auto ms = [](double seconds) { return seconds * 1e3; };
    fill(figure, run.hold(contest), ms, ms);
  };
  return row;
}

const Outcome& async_outcome(BenchRun& run) {
  return run.shared("save async", [&] {
    return Contest{.ours = {side(run), "async"},
                   .peers = {{side(run), "sync", "", "", "sherd, waited for"}},
                   .rounds = run.sized(5, 1)};
  });
}

// What the rank's thread waits when a step changes all of the state at once, which is the worst of cases.
Benchmark stall_benchmark() {
  Benchmark row;
  row.name = "save.async.stall";
  row.summary = "until a step may change all of a state that is being saved, beside a save that is waited for";
  row.unit = {"ms", Better::lower, 0};
  row.measure = [](Figure& figure, BenchRun& run) {
    const Outcome& outcome = async_outcome(run);
    fill(figure, outcome, [](double seconds) { return seconds * 1e3; });
    const nlohmann::json& answer = outcome.ours.answers.back();
    for (const char* key : {"start_seconds", "copy_seconds", "copied_bytes", "all_seconds"})
      figure.detail[key] = answer.at(key);
  };
  return row;
}

// The part of the stall that is no copy.
Benchmark start_benchmark() {
  Benchmark row;
  row.name = "save.async.start";
  row.summary = "what the rank's thread waits beside the copies, over a save that is waited for";
  row.unit = {"x", Better::lower, 3};
  row.target = {Rule::value_at_most, 0.02};
  row.measure = [](Figure& figure, BenchRun& run) {
    const Outcome& outcome = async_outcome(run);
    figure.value = outcome.ours.median("/start_seconds") / outcome.peers.at(0).median();
  };
  return row;
}

Benchmark copy_benchmark() {
  Benchmark row;
  row.name = "save.async.copy";
  row.summary = "speed of the copies of what changes, while the disk is busy, over that of one thread that copies";
  row.unit = {"x", Better::higher, 2};
  row.target = {Rule::value_at_least, 0.7};
  row.measure = [](Figure& figure, BenchRun& run) {
    const Outcome outcome = run.hold({.ours = {side(run), "async"},
                                      .peers = {{side(run), "copy", "", "", "one thread that copies"}},
                                      .rounds = run.sized(5, 1)});
    const double bytes = outcome.ours.median("/copied_bytes"), all = run.sized(16.0, 1.0) * (64 << 20);
    const double copies = bytes / outcome.ours.median("/copy_seconds"), memory = all / outcome.peers.at(0).median();
    figure.value = copies / memory;
    figure.detail["gb_per_second"] = copies * 1e-9;
    figure.detail["memory_gb_per_second"] = memory * 1e-9;
  };
  return row;
}

// Steps that change all of the state, and so copy all that is not written yet.
Benchmark beside_benchmark() {
  Benchmark row;
  row.name = "save.async.beside";
  row.summary = "what steps beside a save take more than alone, all together, over a save that is waited for";
  row.unit = {"x", Better::lower, 2};
  row.target = {Rule::value_at_most, 0.5};
  row.measure = [](Figure& figure, BenchRun& run) {
    const Outcome outcome = run.hold({.ours = {side(run), "beside"},
                                      .peers = {{side(run), "sync", "", "", "sherd, waited for"}},
                                      .rounds = run.sized(5, 1)});
    const double extra = outcome.ours.median("/extra_seconds");
    figure.value = extra / outcome.peers.at(0).median();
    figure.detail["extra_seconds"] = extra;
    figure.detail["step_seconds"] = outcome.ours.median("/alone_seconds");
  };
  return row;
}

}  // namespace

std::vector<Benchmark> save_benchmarks() {
  const Target nine_tenths{Rule::limit_factor_at_most, 1 / 0.9};
  return {disk_benchmark("sync", "a save of 1 GiB; limit: the same bytes written and summed", nine_tenths, true),
          disk_benchmark("load", "1 GiB loaded from the system's cache, each block checked", {}, false),
          stall_benchmark(),
          start_benchmark(),
          copy_benchmark(),
          beside_benchmark()};
}

}  // namespace sherd::bench
