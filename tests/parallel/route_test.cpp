// Routes of gradients for all facts there are: each is refused by name, or adds up. The table of all routes is
// tests/golden/routes.txt; a test that finds another one says so with the lines that differ. No oracle but the sums
// themselves: what rows do on a route is tested against one rank's values elsewhere (parity_test.cpp).
#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <map>
#include <sstream>

#include "nn/parallel/shard/reduce/route.h"
#include "tests/support/expect_error.h"
#include "tests/support/source_path.h"

namespace sherd::testing {
namespace {

using nn::Route;
using Facts = Route::Facts;
using Unsummed = Route::Unsummed;
using nn::ShardedOver;

struct Types {
  DType made, wire, kept;
};
constexpr Types kTypes[] = {{DType::f32, DType::f32, DType::f32},    {DType::bf16, DType::f32, DType::f32},
                            {DType::bf16, DType::bf16, DType::f32},  {DType::f32, DType::bf16, DType::f32},
                            {DType::bf16, DType::bf16, DType::bf16}, {DType::bf16, DType::f32, DType::bf16}};
// Each combination once; those that differ least follow one another. Only one rank may have full gradients that are the
// reduced ones.
void for_all_facts(const auto& visit) {
  Facts f;
  const auto flags = [](std::initializer_list<bool*> fields, const auto& next) {
    for (unsigned bits = 0; bits < 1U << fields.size(); ++bits) {
      unsigned at = bits;
      for (bool* field : fields) *field = at % 2 == 1, at /= 2;
      next();
    }
  };
  for (const Types& types : kTypes) {
    f.made = types.made, f.wire = types.wire, f.kept = types.kept;
    flags({&f.has_shards, &f.has_replicas, &f.has_tensor, &f.divides, &f.has_home, &f.is_direct, &f.sums_in_tree}, [&] {
      if (f.is_direct && (f.has_shards || f.has_replicas)) return;
      for (const ShardedOver over : {ShardedOver::none, ShardedOver::shards, ShardedOver::all})
        for (const Unsummed unsummed : {Unsummed::none, Unsummed::some, Unsummed::together}) {
          f.accumulated = over, f.unsummed = unsummed;
          flags({&f.reduces_unused, &f.has_custom, &f.is_grad_home, &f.has_grad, &f.is_held, &f.is_partial, &f.has_hook,
                 &f.all_reduces, &f.syncs},
                [&] {
                  if (f.has_grad || !f.is_grad_home) visit(f);
                });
        }
    });
  }
}

// How many combinations go each way, and how many are refused for each reason.
struct Table {
  std::map<std::string, std::int64_t> routes, refused;
  std::string text() const {
    std::string out = "# facts  route, and how often it rounds to a narrower wire\n";
    for (const auto& [route, count] : routes) out += fmt::format("{:7}  {}\n", count, route);
    out += "# facts  that exclude each other\n";
    for (const auto& [why, count] : refused) out += fmt::format("{:7}  {}\n", count, why);
    return out;
  }
};

Table all_routes() {
  Table table;
  std::vector<Route::Hop> last;
  std::int64_t* count = nullptr;
  for_all_facts([&](const Facts& facts) {
    if (const std::string_view why = Route::refusal(facts); !why.empty()) {
      ++table.refused[std::string(why)];
      return;
    }
    const Route route = Route::of(facts);
    if (!count || route.hops() != last) {
      last = route.hops();
      const int roundings = last.back().after.roundings;
      count = &table.routes[route.text() + (roundings > 0 ? fmt::format("; rounds {}x", roundings) : "")];
    }
    ++*count;
  });
  return table;
}

std::string text_of_file(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

TEST(Route, EveryCombinationOfFactsIsRefusedByNameOrAddsUp) {
  const auto start = std::chrono::steady_clock::now();
  const Table table = all_routes();
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  EXPECT_EQ(table.text(), text_of_file(source_path("tests/golden/routes.txt")));
  RecordProperty("seconds", fmt::format("{:.3f}", seconds.count()));
}

TEST(Route, AHopThatIsLeftOutDoubledOrMovedDoesNotAddUp) {
  std::vector<Facts> drawn;
  std::int64_t at = 0;
  for_all_facts([&](const Facts& facts) {
    if (Route::refusal(facts).empty() && at++ % 499 == 0) drawn.push_back(facts);
  });
  ASSERT_GT(drawn.size(), 100U);
  for (const Facts& facts : drawn) {
    const std::vector<Route::Hop> hops = Route::of(facts).hops();
    for (std::size_t i = 0; i < hops.size(); ++i) {
      std::vector<Route::Hop> without = hops, twice = hops;
      without.erase(without.begin() + static_cast<std::ptrdiff_t>(i));
      twice.insert(twice.begin() + static_cast<std::ptrdiff_t>(i), hops[i]);
      EXPECT_THROW(Route(twice).check(facts), Error) << Route(hops).text() << ", " << i << " twice";
      // The hook, and a slot that has the tensor already, change no sum.
      const bool matters = hops[i].from != hops[i].to || hops[i].move == Route::Move::sum_replicas;
      if (!matters) continue;
      EXPECT_THROW(Route(without).check(facts), Error) << Route(hops).text() << " without " << i;
    }
  }
}

TEST(Route, ErrorsNameTheHopAndWhatIsWrong) {
  Facts f{.has_shards = true, .has_replicas = true};
  const auto hops = [&f] { return Route::of(f).hops(); };
  std::vector<Route::Hop> wrong = hops();
  EXPECT_EQ(Route(wrong).text(), "scatter arrival>shard, sum_replicas shard>shard, keep shard>grad");
  std::swap(wrong[0], wrong[1]);
  expect_error([&] { Route(wrong).check(f); },
               {"sum_replicas shard>shard, scatter", "reads before it is written shard"});
  f.has_grad = true;
  wrong = hops();
  EXPECT_EQ(Route(wrong).text(), "scatter arrival>apart, sum_replicas apart>grad +gradient, keep grad>grad");
  wrong[1].add_to = AddTo::nothing;
  expect_error([&] { Route(wrong).check(f); }, {"does not end with all of it in grad"});
  f.divides = true;
  f.has_home = true;
  expect_error([&] { Route::of(f); }, {"no route of a gradient", "offloaded gradients"});
}

TEST(Route, ReplicasThatSumInSixteenBitsRoundTwice) {
  const Facts f{.has_shards = true, .has_replicas = true, .wire = DType::bf16};
  EXPECT_EQ(Route::of(f).hops().back().after.roundings, 2);
  const Facts shards{.has_shards = true, .wire = DType::bf16};
  EXPECT_EQ(Route::of(shards).hops().back().after.roundings, 1);
}

}  // namespace
}  // namespace sherd::testing
