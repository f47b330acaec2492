// soak_tables [--share 1] [--only KIND] [--seed N]: makes layouts, meshes with models, recordings and errors, each of
// sizes drawn anew, and drops them: none may stay in a table but in those that are bounded, which are full before the
// first. What a process holds after the first tenth and at the end may differ by 2 MB. Each kind has a process of its
// own, of two ranks that are threads. Prints a row for each.
#include <malloc.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <random>

#include "compile/compile.h"
#include "compile/ir/text/parse.h"
#include "dtensor/propagate.h"
#include "dtensor/transition/redistribute.h"
#include "nn/checkpoint/training_state.h"
#include "nn/optim/adamw.h"
#include "nn/parallel/extensions/int8_gather.h"
#include "nn/parallel/extensions/int8_reduce.h"
#include "nn/parallel/tensor_parallel.h"
#include "runtime/autograd/autograd.h"
#include "runtime/cpu/gemm/gemm.h"
#include "runtime/op/attrs/attr_text.h"
#include "tests/parallel/nets.h"
#include "tests/support/ranks.h"

namespace sherd::testing {
namespace {

using Draws = std::mt19937_64;  // of one item: the same on all ranks
using MakeItem = std::function<void(Draws& draws)>;
using Group = std::shared_ptr<ProcessGroup>;
constexpr int kRanks = 2;

/// From 0 to `count` - 1.
std::int64_t below(std::int64_t count, Draws& draws) {
  return static_cast<std::int64_t>(draws() % static_cast<std::uint64_t>(count));
}

// ---- layouts: of rows that are listed, and of placements ----

Placement placement(Draws& draws) {
  const std::int64_t drawn = below(3, draws);
  return drawn == 2 ? Placement(Replicate()) : Placement(Shard(static_cast<int>(drawn)));
}

MakeItem begin_layouts(const Group& group) {
  return [mesh = DeviceMesh(group, {{"dp", group->size()}, {"tp", 1}})](Draws& draws) {
    const std::int64_t rows[] = {below(1000, draws), 1 + below(1000, draws)}, all = rows[0] + rows[1];
    const auto ragged = Spec::of(mesh, {Shard(0), Replicate()})->with_rows(0, rows);
    const std::int64_t here = rows[mesh.coordinate(0)];
    if (below(2, draws) == 0) {
      const Tensor x = from_local(zeros({here, 2}), ragged, {.shape = Shape{all, 2}});
      redistribute(mul(x + x, 0.5), {placement(draws), Replicate()});
    } else {
      const Tensor x = distribute(zeros({all, 3}), ragged, kOwnData);
      const Tensor y = distribute(zeros({3, 2}), mesh, {placement(draws), placement(draws)}, kOwnData);
      full_tensor(matmul(x, redistribute(y, {Replicate(), Replicate()})));
    }
  };
}

// ---- meshes, and models on them ----

struct UnitsOf {
  const char* strategy;
  bool is_grid = false, is_bf16 = false, accumulates = false, in_8_bits = false, has_slices = false,
       is_tensor_parallel = false;
};
constexpr UnitsOf kUnits[] = {{.strategy = "full_shard"},
                              {.strategy = "full_shard", .is_bf16 = true, .accumulates = true},
                              {.strategy = "full_shard", .in_8_bits = true},
                              {.strategy = "full_shard", .has_slices = true},
                              {.strategy = "full_shard", .is_tensor_parallel = true},
                              {.strategy = "shard_grad_op"},
                              {.strategy = "no_shard"},
                              {.strategy = "hybrid_shard", .is_grid = true},
                              {.strategy = "hybrid_shard_state", .is_grid = true, .is_bf16 = true}};

nn::UnitPolicy options_of(const UnitsOf& how) {
  nn::UnitPolicy options = nn::strategy(how.strategy);
  if (how.is_bf16) options.mp_policy = {.param_dtype = DType::bf16, .reduce_dtype = DType::f32};
  if (how.has_slices) options.reshard_after_forward = 2;
  return options;
}

nn::Plan plan_of_net() {
  return {{"blocks.0.linear", nn::prepare_input({.from = Replicate(), .to = Replicate()})},
          {"blocks.0.linear", nn::colwise({.input = Replicate()})},
          {"blocks.1.linear", nn::rowwise({.output = Replicate()})},
          {"head", nn::prepare_output({.to = Replicate(), .local = true})}};
}

MakeItem begin_meshes(const Group& group) {
  return [group](Draws& draws) {
    const UnitsOf& how = kUnits[below(std::ssize(kUnits), draws)];
    const int replicas = how.is_grid ? kRanks : 1, tp = how.is_tensor_parallel ? kRanks : 1;
    const DeviceMesh root(group, {{"replicate", replicas}, {"dp", kRanks / replicas / tp}, {"tp", tp}});
    const DeviceMesh mesh = how.is_grid ? root.slice({"replicate", "dp"}) : root["dp"];
    Net net({6, 1 + below(40, draws), 1 + below(40, draws), 5});
    if (how.is_tensor_parallel) nn::parallelize(net, root["tp"], plan_of_net());
    shard(net, mesh, options_of(how), options_of(how));
    if (how.in_8_bits) {
      nn::unit_of(net).set_gather_transform(nn::int8_gather());
      nn::unit_of(net).set_custom_reduce(nn::int8_reduce());
    }
    net.materialize(nn::Seed{3});
    nn::AdamW optimizer(net.parameters());
    const Tensor x = zeros({2, 6});
    if (how.accumulates) {
      nn::units(net).set_requires_gradient_sync(false);
      backward(sum(net(x)));
      nn::units(net).set_requires_gradient_sync(true);
    }
    backward(sum(net(x)));
    optimizer.step_and_clear();
  };
}

// ---- recordings ----

/// A sharded model that lives for all items.
struct SharedNet {
  Net net{kTwoBlocks};
  explicit SharedNet(const Group& group) {
    shard(net, DeviceMesh(group));
    net.materialize(nn::Seed{3});
  }
  Tensor step(const Tensor& x, double factor) {
    Tensor loss = sum(mul(net(x), factor));
    backward(loss);
    for (nn::Parameter* p : net.parameters()) p->clear_grad();
    return loss;
  }
};

MakeItem begin_recordings(const Group& group) {
  return [shared = std::make_shared<SharedNet>(group), mesh = DeviceMesh(group)](Draws& draws) {
    const double factor = 1 + static_cast<double>(below(1'000'000, draws));
    CompiledStep step(
        [&](std::span<const Tensor> in) -> std::vector<Tensor> {
          return {shared->step(narrow(in[0], 0, 0, in[0].size(0) - 1), factor), mul(in[1], factor)};
        },
        {.compare = false});
    const std::int64_t rows[] = {below(200, draws), 2 + below(200, draws)};
    const auto ragged = Spec::of(mesh, Shard(0))->with_rows(0, rows);
    const Tensor in[] = {zeros({rows[1], 6}), distribute(zeros({rows[0] + rows[1]}), ragged, kOwnData)};
    for (int call = 0; call < 3; ++call) step(in);
  };
}

// ---- errors ----

/// Throws in its forward.
struct Refuses : nn::Layer<Refuses> {
  nn::Linear& linear;
  Refuses() : linear(add<nn::Linear>("linear", 6, 6)) {}
  Tensor forward(const Tensor& x) { return reshape(linear(x), {7, x.size(0)}); }
};

struct Faults {
  Group group;
  DeviceMesh mesh{group};
  Refuses net{};
  explicit Faults(const Group& of) : group(of) {
    nn::fully_shard(net, mesh);
    net.materialize(nn::Seed{3});
  }
};

/// Ways to be refused; `n` is in the message.
constexpr void (*kFaults[])(Faults&, std::int64_t n) = {
    [](Faults&, std::int64_t n) { zeros({2, n + 2}) + zeros({2, n + 3}); },
    [](Faults&, std::int64_t n) { matmul(zeros({2, n}), zeros({n + 1, 2})); },
    [](Faults&, std::int64_t n) { narrow(zeros({2}), 0, n, n + 3); },
    [](Faults&, std::int64_t n) { zeros({n + 2}).item<float>(); },
    [](Faults&, std::int64_t n) { find_op(fmt::format("op{}", n)); },
    [](Faults&, std::int64_t n) { parse_attrs(find_op("narrow"), fmt::format("dim=0 start=0 length={}x", n)); },
    [](Faults&, std::int64_t n) { ir::parse(fmt::format("program 1\nmodule m{}\nlayout\n", n)); },
    [](Faults&, std::int64_t n) {
      const std::string text = "{shard_bytes=0 full_bytes=0 pieces=[]";
      ir::parse(fmt::format("program 1\nunit_layout u{0} {1} name=u{0}}}\nnonsense\n", n, text));
    },
    [](Faults&, std::int64_t n) { UnitLayout::intern({.name = fmt::format("u{}", n), .full_bytes = -n - 1}); },
    [](Faults&, std::int64_t n) { nn::strategy(fmt::format("full_shard{}", n)); },
    [](Faults&, std::int64_t n) { ckpt::CheckpointReader reader(fmt::format("/nowhere/{}", n)); },
    [](Faults& f, std::int64_t n) { f.mesh.axis(fmt::format("axis{}", n)); },
    [](Faults& f, std::int64_t n) { DeviceMesh(f.group, {{"dp", static_cast<int>(n) + 3}}); },
    [](Faults& f, std::int64_t n) { Spec::of(f.mesh, Shard(0))->with_rows(0, std::array{n, n, n}); },
    [](Faults& f, std::int64_t n) {
      from_local(zeros({n + 1, 2}), f.mesh, {Shard(0)}, {.shape = Shape{7 * n + 9, 2}});
    },
    [](Faults& f, std::int64_t n) { nn::unit_of(f.net).set_gradient_divide_factor(-static_cast<double>(n) - 1); },
    [](Faults& f, std::int64_t n) { f.net(zeros({n + 2, 6})); },
    [](Faults& f, std::int64_t n) {
      CompiledStep step([&](std::span<const Tensor> in) -> std::vector<Tensor> { return {f.net(in[0])}; },
                        {.compare = false});
      const Tensor in[] = {zeros({n + 2, 6})};
      step(in);
    },
};

MakeItem begin_errors(const Group& group) {
  return [faults = std::make_shared<Faults>(group)](Draws& draws) {
    const auto index = static_cast<std::size_t>(below(std::ssize(kFaults), draws));
    bool is_refused = false;
    try {
      kFaults[index](*faults, below(1'000'000, draws) % 500);
    } catch (const Error&) { is_refused = true; }
    check(is_refused, "fault {} of the soak is none", index);
    nn::reset_after_error(faults->net);
  };
}

/// What is made of one kind, and dropped; `begin` runs on each rank.
struct TableKind {
  std::string_view name;
  int count;  // of a whole soak
  MakeItem (*begin)(const Group& group);
};
constexpr TableKind kKinds[] = {{"layouts", 60'000, begin_layouts},
                                {"meshes", 12'000, begin_meshes},
                                {"recordings", 20'000, begin_recordings},
                                {"errors", 20'000, begin_errors}};

// ---- what a process holds ----

constexpr int kFewestItems = 200;
constexpr double kMayGrow = 2e6;  // bytes

struct TableOptions {
  double share = 1;
  std::string only;
  std::uint64_t seed = 1;
};

/// Bytes of this process's own pages, without those that the heap keeps.
double own_bytes() {
  ::malloc_trim(0);
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("RssAnon:")) return 1024 * std::atof(line.c_str() + line.find(':') + 1);
  fail("/proc/self/status has no RssAnon");
}

/// Bytes of all ranks, which make nothing meanwhile.
double own_bytes_at_rest(ProcessGroup& group) {
  RankContext::current().drain_queues();
  group.host().barrier();
  const double bytes = group.rank() == 0 ? own_bytes() : 0;
  group.host().barrier();
  return bytes;
}

/// Plans of calls, and layouts that were asked for lately.
void fill_bounded_tables(const Group& group) {
  const MakeItem make = begin_layouts(group);
  for (std::uint64_t item = 0; item < 2 * kMaxPlans; ++item) {
    Draws draws(item);
    make(draws);
  }
}

/// Returns whether it stays flat.
bool soak_kind(const TableKind& kind, const TableOptions& options) {
  const int count = std::max(kFewestItems, static_cast<int>(options.share * kind.count)), warm_up = count / 10;
  double first = 0, last = 0;
  run_ranks(kRanks, [&](const Group& group) {
    fill_bounded_tables(group);
    // A library would keep the primitives of 1,024 shapes for each thread, of 80 KB each where they are of AMX.
    const cpu::UseGemmBackend own_products(cpu::GemmBackend::blocked);
    const MakeItem make = kind.begin(group);
    double after_warm_up = 0;
    for (int item = 0; item < count; ++item) {
      if (item == warm_up) after_warm_up = own_bytes_at_rest(*group);
      Draws draws(options.seed * 1'000'003 + static_cast<std::uint64_t>(item));
      make(draws);
    }
    const double at_end = own_bytes_at_rest(*group);
    if (group->rank() != 0) return;
    first = after_warm_up;
    last = at_end;
  });
  const bool is_flat = last - first <= kMayGrow;
  fmt::print("{:12} {:8} {:12.2f} {:12.2f} {:12.1f}{}\n", kind.name, count, first / 1e6, last / 1e6,
             (last - first) / (count - warm_up), is_flat ? "" : "   grows");
  return is_flat;
}

/// Starts a process for it, before this one has any thread.
bool soak_apart(const TableKind& kind, const TableOptions& options) {
  std::fflush(stdout);
  const pid_t child = ::fork();
  check(child >= 0, "cannot fork");
  if (child == 0) {
    int status = 1;
    try {
      status = soak_kind(kind, options) ? 0 : 1;
    } catch (const std::exception& error) { fmt::print(stderr, "soak_tables: {}: {}\n", kind.name, error.what()); }
    std::fflush(stdout);
    std::_Exit(status);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  if (WIFSIGNALED(status)) fmt::print("{:12} ended by signal {}\n", kind.name, WTERMSIG(status));
  return status == 0;
}

int soak(const TableOptions& options) {
  fmt::print("{:12} {:>8} {:>12} {:>12} {:>12}\n", "kind", "items", "MB, a tenth", "MB, all", "bytes/item");
  int failed = 0;
  for (const TableKind& kind : kKinds) {
    if (options.only.empty()) failed += soak_apart(kind, options) ? 0 : 1;
    else if (options.only == kind.name) failed += soak_kind(kind, options) ? 0 : 1;
  }
  fmt::print("soak: {} kinds grow by more than {:.0f} MB; --seed {}\n", failed, kMayGrow / 1e6, options.seed);
  return failed == 0 ? 0 : 1;
}

TableOptions parse(int argc, char** argv) {
  TableOptions options;
  for (int i = 1; i < argc; i += 2) {
    const std::string_view flag = argv[i];
    check(i + 1 < argc, "{} needs a value", flag);
    if (flag == "--share") options.share = std::atof(argv[i + 1]);
    else if (flag == "--only") options.only = argv[i + 1];
    else if (flag == "--seed") options.seed = std::strtoull(argv[i + 1], nullptr, 10);
    else fail("unknown flag '{}'; there are --share, --only and --seed", flag);
  }
  check(options.share > 0 && options.share <= 1, "--share must be a number above 0, at most 1, got {}", options.share);
  const auto is_it = [&](const TableKind& kind) { return kind.name == options.only; };
  check(options.only.empty() || std::ranges::any_of(kKinds, is_it),
        "--only {}: there are layouts, meshes, recordings and errors", options.only);
  return options;
}

}  // namespace
}  // namespace sherd::testing

int main(int argc, char** argv) {
  ::mallopt(M_ARENA_MAX, 1);  // what the arenas of several threads hold comes and goes by megabytes
  try {
    return sherd::testing::soak(sherd::testing::parse(argc, argv));
  } catch (const std::exception& error) {
    fmt::print(stderr, "soak_tables: {}\n", error.what());
    return 2;
  }
}
