// units.*: host overhead of sharding: 32 small sharded units, forward and backward, and AdamW over their 128
// parameters. Nothing is captured, as in PyTorch's usual loop. On two ranks the peer's messages go over loopback TCP,
// ours through shared memory; on one rank ours has nothing to copy. units.*.many: whether a unit costs the same in a
// model of 3,300 as in one of 33, where the caches hold all of one and little of the other: so over what the same
// model's does that is not sharded.
#include <utility>

#include <fmt/format.h>

#include "tools/bench/bench.h"
#include "tools/bench/child.h"
#include "tools/bench/teams.h"

namespace sherd::bench {

namespace {

constexpr int kNumUnits = 32;  // of units_child.cpp and peers/units.py

struct UnitsCase {
  const char* name;
  int ranks;
  bool sharded;
};
constexpr UnitsCase kPlain{"plain", 1, false}, kOneRank{"r1", 1, true}, kTwoRanks{"r2", 2, true};

std::string name_of(const UnitsCase& c, bool optimizer) {
  return fmt::format("units.{}{}", optimizer ? "adamw." : "", c.name);
}

std::string ranks_of(const UnitsCase& c) { return fmt::format("{} rank{}", c.ranks, c.ranks > 1 ? "s" : ""); }

// Held once for a case's own figure and for those that subtract it.
const Outcome& outcome_of(const UnitsCase& c, bool optimizer, BenchRun& run) {
  return run.shared(name_of(c, optimizer), [&] {
    const auto request = [&](int count) {
      return fmt::format("{} {}", optimizer ? "adamw" : "step", run.sized(count, 2));
    };
    const std::vector<std::string> words = {c.sharded ? "fsdp2" : "plain", std::to_string(c.ranks)};
    std::vector<Contestant> torches = run.torch_contestants("units.py", words, request(20));
    if (optimizer) torches = in_variants(torches, {{"foreach", {"foreach"}}, {"fused", {"fused"}}});
    return Contest{.ours = {child("units", {"--sharded", c.sharded ? "true" : "false"}, c.ranks), request(50)},
                   .peers = std::move(torches),
                   .rounds = run.sized(7, 1)};
  });
}

Benchmark units_benchmark(const UnitsCase& c, bool optimizer) {
  Benchmark row;
  row.name = name_of(c, optimizer);
  row.summary =
      fmt::format("{}, {}, eager",
                  optimizer ? "AdamW over 128 small parameters" : "32 units of two 16x16 linears, forward and backward",
                  c.sharded ? "fully_shard on " + ranks_of(c) : "not sharded");
  row.unit = {"ms", Better::lower, 3};
  row.measure = [c, optimizer](Figure& figure, BenchRun& run) {
    fill(figure, outcome_of(c, optimizer, run), [](double seconds) { return seconds * 1e3; });
  };
  return row;
}

// Each side is compared with itself: a peer's overhead is over the same peer's model without sharding.
Benchmark overhead_benchmark(const UnitsCase& c, double most_us) {
  Benchmark row;
  row.name = name_of(c, false) + ".overhead";
  row.summary = fmt::format("what fully_shard on {} adds to each unit: ({} - {}) / {}", ranks_of(c), name_of(c, false),
                            name_of(kPlain, false), kNumUnits);
  row.unit = {"us", Better::lower, 2};
  row.target = {Rule::value_at_most, most_us};
  row.measure = [c](Figure& figure, BenchRun& run) {
    const Outcome &without = outcome_of(kPlain, false, run), &with = outcome_of(c, false, run);
    const auto per_unit = [](const Answers& sharded, const Answers& plain) {
      return (sharded.median() - plain.median()) * 1e6 / kNumUnits;
    };
    figure.value = per_unit(with.ours, without.ours);
    for (std::size_t i = 0; i < with.peers.size(); ++i) {
      const Answers &sharded = with.peers[i], &plain = without.peers[i];
      if (sharded.ok() && plain.ok())
        figure.peers.push_back({sharded.name, per_unit(sharded, plain), sharded.settings});
      else add_note(figure, "no peer: " + (sharded.ok() ? plain : sharded).error);
    }
  };
  return row;
}

// `request` of one rank: seconds per unit of many units over those of few; of a request that a plain model has too,
// over the same of that. All sides are ours.
Benchmark many_benchmark(std::string name, std::string what, std::string request, bool beside_plain) {
  constexpr int kFew = 33;
  Benchmark row;
  row.name = "units." + name + ".many";
  row.summary = fmt::format("{}, per unit: of 3,300 units over that of 33{}", what,
                            beside_plain ? ", beside a model that is not sharded" : "");
  row.unit = {"of few", Better::lower, 2};
  row.target = {Rule::value_at_most, 1.5};
  row.measure = [request = std::move(request), beside_plain](Figure& figure, BenchRun& run) {
    if (run.is_against()) return add_note(figure, "compares sides of one program: measure it without --against");
    const int many = run.sized(100 * kFew, 2 * kFew);
    const auto side = [&](bool sharded, int units, int count) {
      return Contestant{child("units", {"--sharded", sharded ? "true" : "false", "--units", std::to_string(units)}),
                        fmt::format("{} {}", request, run.sized(count, 1))};
    };
    Contest contest{.ours = side(true, many, 5), .peers = {side(true, kFew, 50)}, .rounds = run.sized(5, 1)};
    if (beside_plain) contest.peers.insert(contest.peers.end(), {side(false, many, 5), side(false, kFew, 50)});
    const Outcome outcome = run.hold(contest);
    const auto us_per_unit = [](const Answers& answers, int units) {
      if (!answers.ok()) throw Error(answers.error);
      return answers.median() * 1e6 / units;
    };
    const auto growth = [&](const std::string& of, const Answers& of_many, const Answers& of_few) {
      const double us_of_many = us_per_unit(of_many, many), us_of_few = us_per_unit(of_few, kFew);
      figure.detail[of + "us_of_many"] = us_of_many;
      figure.detail[of + "us_of_few"] = us_of_few;
      return us_of_many / us_of_few;
    };
    figure.value = growth("", outcome.ours, outcome.peers.at(0));
    if (beside_plain) *figure.value /= growth("plain_", outcome.peers.at(1), outcome.peers.at(2));
  };
  return row;
}

}  // namespace

std::vector<Benchmark> units_benchmarks() {
  std::vector<Benchmark> rows;
  for (const bool optimizer : {false, true})
    for (const UnitsCase& c : {kPlain, kOneRank, kTwoRanks}) rows.push_back(units_benchmark(c, optimizer));
  rows.push_back(overhead_benchmark(kOneRank, 1));
  rows.push_back(overhead_benchmark(kTwoRanks, 25));
  rows.push_back(many_benchmark("r1", "forward and backward", "step", true));
  rows.push_back(many_benchmark("wrap", "fully_shard()", "wrap", false));
  rows.push_back(many_benchmark("record", "the call that records", "record", true));
  return rows;
}

}  // namespace sherd::bench
