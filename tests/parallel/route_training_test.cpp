// Three steps of two micro-batches under settings that lead gradients over all kinds of routes, beside one rank on all
// rows: gradients before and values after each update. Every pair of settings is among the combinations that are tried;
// SHERD_ROUTES=all tries all of them (tools/soak/routes.sh).
#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <random>
#include <set>

#include "nn/optim/sgd.h"
#include "runtime/autograd/autograd.h"
#include "tests/parallel/uneven_net.h"
#include "tests/support/expect_error.h"
#include "tests/support/ranks.h"
#include "tests/support/temp_dir.h"

namespace sherd::testing {
namespace {

using Group = std::shared_ptr<ProcessGroup>;

enum RouteSetting : std::size_t { kMesh, kDtypes, kHook, kCustom, kHome, kAccumulated, kFirstPass, kUnused };
constexpr std::array<int, 8> kRouteValues{5, 3, 2, 2, 2, 3, 3, 2};
using RouteChoice = std::array<int, kRouteValues.size()>;

struct RouteMesh {
  const char* strategy;
  Grid grid;
};
constexpr RouteMesh kRouteMeshes[] = {{"hybrid_shard", {1, 1}},
                                      {"hybrid_shard", {1, 2}},
                                      {"hybrid_shard", {2, 1}},
                                      {"hybrid_shard", {2, 2}},
                                      {"hybrid_shard_state", {2, 2}}};

RouteChoice route_choice(std::int64_t index) {
  RouteChoice choice{};
  for (std::size_t s = 0; s < kRouteValues.size(); ++s) {
    choice[s] = static_cast<int>(index % kRouteValues[s]);
    index /= kRouteValues[s];
  }
  return choice;
}

std::vector<RouteChoice> all_route_choices() {
  std::int64_t count = 1;
  for (const int values : kRouteValues) count *= values;
  std::vector<RouteChoice> all;
  for (std::int64_t i = 0; i < count; ++i) all.push_back(route_choice(i));
  return all;
}

// Choices in a drawn order that have a pair of values which no earlier one has: first with many.
std::vector<RouteChoice> pairwise_choices() {
  std::vector<RouteChoice> all = all_route_choices(), chosen;
  std::shuffle(all.begin(), all.end(), std::mt19937_64(32));
  std::set<std::array<std::size_t, 4>> seen;
  const auto visit = [&seen](const RouteChoice& c, bool adds) {
    std::size_t fresh = 0;
    for (std::size_t a = 0; a < c.size(); ++a)
      for (std::size_t b = a + 1; b < c.size(); ++b) {
        const std::array<std::size_t, 4> pair{a, static_cast<std::size_t>(c[a]), b, static_cast<std::size_t>(c[b])};
        fresh += adds ? seen.insert(pair).second : !seen.contains(pair);
      }
    return fresh;
  };
  for (const std::size_t least : {20U, 12U, 6U, 3U, 1U})
    for (const RouteChoice& c : all)
      if (visit(c, false) >= least) {
        visit(c, true);
        chosen.push_back(c);
      }
  return chosen;
}

nn::UnitPolicy route_policy(const RouteChoice& c, const std::string& folder) {
  nn::UnitPolicy policy = nn::strategy(kRouteMeshes[c[kMesh]].strategy);
  if (c[kDtypes] == 1) policy = in_bf16(std::move(policy));
  if (c[kDtypes] == 2) policy.mp_policy.reduce_dtype = DType::bf16;
  if (c[kHome] == 1) policy.offload = nn::ShardOffload{.folder = folder, .gradients = true};
  policy.gradients = std::min(static_cast<nn::ShardedOver>(c[kAccumulated]), policy.optimizer);
  policy.reduce_unused = c[kUnused] == 1;
  return policy;
}

void train_beside_one_rank(const Group& group, const RouteChoice& c, const nn::UnitPolicy& policy) {
  Net net(kUneven), reference(kUneven);
  nn::UnitPolicy of_root = policy;
  if (c[kDtypes] == 1) of_root.mp_policy.output_dtype = DType::f32;
  shard(net, kRouteMeshes[c[kMesh]].grid.mesh(group), policy, of_root);
  net.materialize(nn::Seed{2});
  reference.materialize(nn::Seed{2});
  for (const nn::UnitHandle& unit : nn::units(net)) {
    if (c[kCustom] == 1)
      unit.set_custom_reduce([](const UnitReduceAttrs& attrs, const Tensor& full, std::span<const Tensor> out) {
        start_reduce(attrs, full, out);
      });
    if (c[kHook] == 1)
      unit.set_all_reduce_hook([](const nn::ReducedUnit& reduced) {
        for (const Tensor& shard : reduced.shards) copy_into(shard, shard * 0.5);
      });
  }
  const Side spread = on_slices(net, *group, 5, 2), whole = on_batches(reference, 5, 2);
  nn::Sgd ours(net.parameters(), {.lr = 0.1}), theirs(reference.parameters(), {.lr = 0.1});
  const double limit = c[kDtypes] == 0 ? 1e-5 : 3e-2;
  for (std::uint64_t step = 0; step < 3; ++step) {
    for (std::uint64_t micro = 0; micro < 2; ++micro) {
      nn::units(net).set_requires_gradient_sync(micro == 1 || c[kFirstPass] != 1);
      nn::units(net).set_requires_all_reduce(micro == 1 || c[kFirstPass] != 2);
      backward(spread.loss(2 * step + micro));
      backward(whole.loss(2 * step + micro) * (c[kHook] == 1 ? 0.5 : 1.0));
    }
    expect_same_gradients(net, reference, limit);
    ours.step_and_clear();
    theirs.step_and_clear();
    expect_same_values(net, reference, limit);
  }
}

TEST(RouteTraining, SettingsReduceToTheGradientsOfOneRank) {
  const char* const asked = std::getenv("SHERD_ROUTES");
  const std::vector<RouteChoice> choices =
      asked && std::string_view(asked) == "all" ? all_route_choices() : pairwise_choices();
  for (const RouteChoice& c : choices) {
    const TempDir folder;
    run_ranks(kRouteMeshes[c[kMesh]].grid.ranks(), [&](const Group& group) {
      SCOPED_TRACE(fmt::format("choice {}", fmt::join(c, " ")));
      nn::UnitPolicy policy = route_policy(c, folder.path());
      if (policy.offload && nn::data_mesh(kRouteMeshes[c[kMesh]].grid.mesh(group), policy).divides_shards()) {
        Net net(kUneven);
        expect_error([&] { nn::fully_shard(net, kRouteMeshes[c[kMesh]].grid.mesh(group), policy); }, {"offload"});
        policy.offload.reset();
      }
      train_beside_one_rank(group, c, policy);
    });
    if (::testing::Test::HasFailure()) return;
  }
  fmt::print("{} combinations\n", choices.size());
}

}  // namespace
}  // namespace sherd::testing
