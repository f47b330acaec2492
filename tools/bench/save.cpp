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

double per_second(const Answers& side, const char* seconds, double bytes) {
  return bytes / side.median(seconds) * 1e-9;
}

Benchmark copy_benchmark() {
  Benchmark row;
  row.name = "save.async.copy";
  row.summary = "copies of what changes, while the disk is busy; limit: memory copied by one thread";
  row.unit = {"GB/s", Better::higher, 2};
  row.measure = [](Figure& figure, BenchRun& run) {
    const Outcome outcome =
        run.hold({.ours = {side(run), "async"}, .limit = Contestant{side(run), "copy"}, .rounds = run.sized(5, 1)});
    const double bytes = outcome.ours.median("/copied_bytes"), all = run.sized(16.0, 1.0) * (64 << 20);
    figure.value = per_second(outcome.ours, "/copy_seconds", bytes);
    if (outcome.limit && outcome.limit->ok()) figure.limit = all / outcome.limit->median() * 1e-9;
  };
  return row;
}

Benchmark beside_benchmark() {
  Benchmark row;
  row.name = "save.async.beside";
  row.summary = "a step of products while a save is written beside it, over the step alone";
  row.unit = {"x", Better::lower, 2};
  row.measure = [](Figure& figure, BenchRun& run) {
    const Outcome outcome = run.hold({.ours = {side(run), "beside"}, .rounds = run.sized(5, 1)});
    figure.value = outcome.ours.median("/beside_seconds") / outcome.ours.median("/alone_seconds");
  };
  return row;
}

}  // namespace

std::vector<Benchmark> save_benchmarks() {
  return {disk_benchmark("sync", "a save of 1 GiB; limit: the same bytes written and summed", {}, true),
          disk_benchmark("load", "1 GiB loaded from the system's cache, each block checked", {}, false),
          stall_benchmark(), copy_benchmark(), beside_benchmark()};
}

}  // namespace sherd::bench
