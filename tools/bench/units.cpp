// units.*: host overhead of sharding: 32 small sharded units, forward and backward, and AdamW over their 128
// parameters. Nothing is captured, as in PyTorch's usual loop. On two ranks the peer's messages go over loopback TCP,
// ours through shared memory; on one rank ours has nothing to copy. units.*.many: whether a unit costs the same in a
// model of 3,300 as in one of 33, where the caches hold all of one and little of the other: so over what the same
// model's does that is not sharded.
#include <fmt/format.h>

#include "runtime/tensor/error.h"
#include "tools/bench/bench.h"

namespace sherd::bench {

namespace {

constexpr int kNumUnits = 32;  // of the child and peers/units.py

struct UnitsCase {
  std::string name;
  int ranks;
  bool sharded;

  std::string on_ranks() const { return fmt::format("fully_shard on {} rank{}", ranks, ranks > 1 ? "s" : ""); }
  /// Held once for a case's own figure and for those that subtract it.
  std::function<Outcome(BenchRun&)> outcome(bool optimizer) const {
    const std::string request = optimizer ? "adamw" : "step";
    ContestRow row{.ours = fmt::format("units --sharded {}", sharded),
                   .request = request + " {50|2}",
                   .ranks = ranks,
                   .torch = fmt::format("units.py {} {}", sharded ? "fsdp2" : "plain", ranks),
                   .torch_request = request + " {20|2}",
                   .rounds = 7};
    if (optimizer) row.variants = {{"foreach", {"foreach"}}, {"fused", {"fused"}}};
    return held("units " + name + request, row);
  }
};

Benchmark units_benchmark(const UnitsCase& c, bool optimizer) {
  return {.name = fmt::format("units.{}{}", optimizer ? "adamw." : "", c.name),
          .summary = fmt::format(
              "{}, {}, eager",
              optimizer ? "AdamW over 128 small parameters" : "32 units of two 16x16 linears, forward and backward",
              c.sharded ? c.on_ranks() : "not sharded"),
          .unit = lower("ms", 3),
          .outcome = c.outcome(optimizer),
          .value = times(1e3)};
}

// Each side is compared with itself: a peer's overhead is over the same peer's model without sharding.
Benchmark overhead_benchmark(const UnitsCase& c, const UnitsCase& of_plain, double most_us) {
  return {.name = fmt::format("units.{}.overhead", c.name),
          .summary = fmt::format("what {} adds to each unit: (units.{} - units.{}) / {}", c.on_ranks(), c.name,
                                 of_plain.name, kNumUnits),
          .unit = lower("us", 2),
          .target = at_most(most_us),
          .outcome = c.outcome(false),
          .more = [of_plain](Figure& figure, const Outcome& with, BenchRun& run) {
            const Outcome without = of_plain.outcome(false)(run);
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
          }};
}

// `request` of one rank: seconds per unit of many units over those of few; of a request that a plain model has too,
// over the same of that. All sides are ours.
Benchmark many_benchmark(const std::string& name, std::string_view what, const std::string& request, bool beside_plain,
                         bool smoke) {
  constexpr int kFew = 33;
  const int many = smoke ? 2 * kFew : 100 * kFew;
  const std::string of_many = fmt::format(" --units {}", many), of_few = fmt::format(" --units {}", kFew);
  const std::string five = request + " {5|1}", fifty = request + " {50|1}";
  const std::string sharded = "units --sharded true", plain = "units --sharded false";
  ContestRow row{.ours = sharded + of_many, .request = five, .others = {{"", sharded + of_few, fifty}}, .rounds = 5};
  if (beside_plain) row.others.insert(row.others.end(), {{"", plain + of_many, five}, {"", plain + of_few, fifty}});
  return {.name = "units." + name + ".many",
          .summary = fmt::format("{}, per unit: of 3,300 units over that of 33{}", what,
                                 beside_plain ? ", beside a model that is not sharded" : ""),
          .unit = lower("of few", 2),
          .target = at_most(1.5),
          .more = [=](Figure& figure, const Outcome&, BenchRun& run) {
            if (run.is_against())
              return add_note(figure, "compares sides of one program: measure it without --against");
            const Outcome outcome = held(row)(run);
            const auto us_per_unit = [&](const std::string& key, const Answers& answers, int units) {
              check(answers.ok(), "{}", answers.error);
              figure.detail[key] = answers.median() * 1e6 / units;
              return figure.detail[key].get<double>();
            };
            const auto& peers = outcome.peers;
            figure.value = us_per_unit("us_of_many", outcome.ours, many) / us_per_unit("us_of_few", peers.at(0), kFew);
            if (beside_plain)
              *figure.value /= us_per_unit("plain_us_of_many", peers.at(1), many) /
                               us_per_unit("plain_us_of_few", peers.at(2), kFew);
          }};
}

}  // namespace

std::vector<Benchmark> units_benchmarks(bool smoke) {
  const UnitsCase plain{"plain", 1, false}, one_rank{"r1", 1, true}, two_ranks{"r2", 2, true};
  std::vector<Benchmark> rows;
  for (const bool optimizer : {false, true})
    for (const UnitsCase& c : {plain, one_rank, two_ranks}) rows.push_back(units_benchmark(c, optimizer));
  rows.push_back(overhead_benchmark(one_rank, plain, 1));
  rows.push_back(overhead_benchmark(two_ranks, plain, 25));
  rows.push_back(many_benchmark("r1", "forward and backward", "step", true, smoke));
  rows.push_back(many_benchmark("wrap", "fully_shard()", "wrap", false, smoke));
  rows.push_back(many_benchmark("record", "the call that records", "record", true, smoke));
  return rows;
}

}  // namespace sherd::bench
