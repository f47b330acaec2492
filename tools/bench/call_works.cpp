// What a child does without a model that is trained. Each kind of work says what it is asked.
#include <algorithm>
#include <array>

#include "compile/compile.h"
#include "dtensor/propagate.h"
#include "dtensor/spec.h"
#include "nn/layers/linear.h"
#include "nn/module_list.h"
#include "nn/optim/adamw.h"
#include "nn/parallel/shard/wrap/fully_shard.h"
#include "runtime/autograd/autograd.h"
#include "runtime/autograd/slot.h"
#include "runtime/comm/board/thread_group.h"
#include "runtime/comm/group/host_group.h"
#include "runtime/comm/group/rank_kernels.h"
#include "runtime/comm/group/reduction.h"
#include "runtime/cpu/gemm/gemm.h"
#include "runtime/cpu/parallel.h"
#include "runtime/op/rows/ops.h"
#include "runtime/tensor/indices.h"
#include "tools/bench/child.h"
#include "tools/bench/contest.h"
#include "tools/bench/fma_peak.h"

namespace sherd::bench {

namespace {

// `gemm [--engine onednn]`: matrix products on one thread, by that library without our cutting into pieces.
Ready begin_gemm(std::span<const std::string_view> args) {
  std::string engine = "sherd";
  take_flags(args, {{"engine", &engine}});
  const bool library_alone = engine == "onednn";
  check(library_alone || engine == "sherd", "--engine is sherd or onednn, not {}", engine);
  check(!library_alone || cpu::detail::onednn_is_built_in(), "this build has no oneDNN");
  return {
      {{"peer", library_alone ? "oneDNN" : "sherd"}}, [library_alone](const std::string& request) -> nlohmann::json {
        const auto [words, numbers] = asked(request, "NN|NT|TN M N K f32|bf16 CALLS");
        const DType dtype = dtype_from_name(words[1]);
        const bool ta = words[0][0] == 'T', tb = words[0][1] == 'T';
        const std::int64_t m = numbers[0], n = numbers[1], k = numbers[2];
        const cpu::Gemm g{.dtype = dtype,
                          .result = dtype,
                          .transpose_a = ta,
                          .transpose_b = tb,
                          .m = m,
                          .n = n,
                          .k = k,
                          .lda = ta ? m : k,
                          .ldb = tb ? k : n,
                          .ldc = n};
        const Tensor a = ones({g.m * g.k}, g.dtype), b = ones({g.k * g.n}, g.dtype), c = ones({g.m * g.n}, g.result);
        const auto multiply = [&] {
          if (!library_alone) cpu::gemm(g, a.raw(), b.raw(), c.raw());
          else check(cpu::detail::gemm_onednn(g, a.raw(), b.raw(), c.raw()), "oneDNN does not know this product");
        };
        multiply();
        return {{"seconds", samples_of(numbers[3], [&] { return seconds_of(multiply); })}};
      }};
}

// `fma`: seconds for 1e9 floating-point operations.
Ready begin_fma(std::span<const std::string_view> args) {
  take_flags(args, {});
  return {{{"peer", "FMA loop"}}, [](const std::string& request) -> nlohmann::json {
            const auto [words, numbers] = asked(request, "f32|bf16 THREADS");
            const DType dtype = dtype_from_name(words[0]);
            const int threads = static_cast<int>(numbers[0]);
            return {{"seconds", samples_of(3, [&] { return seconds_per_gigaflop(dtype, threads); })}};
          }};
}

// `reduce [--order ranks]`: what a reduction of so many ranks computes, in f32, from memory that is in order: as a
// tree, or one rank after the other through a block that stays in the first-level cache.
class Reduce {
 public:
  explicit Reduce(bool by_ranks) : by_ranks_(by_ranks) {}

  nlohmann::json operator()(const std::string& request) const {
    const auto [words, numbers] = asked(request, "INPUTS BYTES CALLS SAMPLES");
    const std::int64_t inputs = numbers[0], each = numbers[1] / inputs / byte_size(DType::f32);
    std::vector<Tensor> tensors;
    std::vector<const std::byte*> from;
    for (std::int64_t i = 0; i < inputs; ++i) {
      tensors.push_back(ones({each}));
      from.push_back(static_cast<const std::byte*>(tensors.back().raw()));
    }
    const Tensor out = ones({each});
    auto* const to = static_cast<std::byte*>(out.raw());
    const auto reduce = [&] {
      if (by_ranks_) one_by_one(from, to, each);
      else add(from, to, each);
    };
    reduce();
    return {{"seconds", samples_of(numbers[3], [&] { return seconds_per_call(numbers[2], reduce); })}};
  }

 private:
  static void add(std::span<const std::byte* const> from, std::byte* to, std::int64_t count) {
    constexpr comm::Reduction kSum{.in = DType::f32, .wire = DType::f32, .out = DType::f32};
    comm::rank_kernels().reduce_ranks(from, to, count, kSum, false);
  }
  static void one_by_one(const std::vector<const std::byte*>& from, std::byte* to, std::int64_t count) {
    constexpr std::int64_t kBlock = 2048;
    for (std::int64_t at = 0; at < count; at += kBlock) {
      const std::int64_t n = std::min(kBlock, count - at), shift = at * byte_size(DType::f32);
      std::array<const std::byte*, 2> two{from[0] + shift, nullptr};
      for (std::size_t i = 1; i < from.size(); ++i) {
        two[1] = from[i] + shift;
        add(two, to + shift, n);
        two[0] = to + shift;
      }
    }
  }

  bool by_ranks_;
};

Ready begin_reduce(std::span<const std::string_view> args) {
  std::string order = "tree";
  take_flags(args, {{"order", &order}});
  check(order == "tree" || order == "ranks", "--order is tree or ranks, not {}", order);
  return {{{"peer", order == "tree" ? "sherd" : "rank after rank"}}, Reduce(order == "ranks")};
}

// `dispatch`: each sample is one call of a 1-element f32 add, from a window of some hundred microseconds, short enough
// that most are not interrupted. Recorded, its node dies with its result, so that the pool of nodes serves all calls.
Ready begin_dispatch(std::span<const std::string_view> args) {
  take_flags(args, {});
  return {sherd_greeting(), [](const std::string& request) -> nlohmann::json {
            const auto [words, numbers] = asked(request, "plain|recording WINDOWS");
            const bool records = words[0] == "recording";
            const GradMode mode(records);
            Slot slot("a", records);
            slot.set(ones({1}));
            const Tensor a = slot.value(), b = ones({1});
            const auto window = [&] { return seconds_per_call(2000, [&] { Tensor c = add(a, b); }); };
            window();
            return {{"seconds", samples_of(numbers[0], window)}};
          }};
}

// `dtensor`: each sample is what a call on distributed tensors takes more than the same call on plain tensors of the
// local shape, of the row for which that is most. The mesh has two ranks, of which this is the first; the calls need no
// communication, so the other never comes.
struct Operands {
  Tensor a, b;
  Operands local() const { return {a.local(), b.local()}; }
};
struct DtensorCall {
  const char* name;
  std::int64_t rows_of_a, rows_of_b;
  Placement placement_of_a;
  Tensor (*call)(const Tensor& a, const Tensor& b);

  Tensor operator()(const Operands& of) const { return call(of.a, of.b); }
  /// Distributed; n: a size that tells calls apart.
  Operands make(const DeviceMesh& mesh, std::int64_t n) const {
    const auto distributed = [&](std::int64_t rows, Placement placement) {
      const Spec* spec = Spec::of(mesh, placement);
      return Tensor::distributed({rows, n}, spec, ones(spec->local_shape({rows, n})));
    };
    return {distributed(rows_of_a, placement_of_a), distributed(rows_of_b, Shard(0))};
  }
};

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
Samples hits(const DtensorCall& row, const DeviceMesh& mesh, std::int64_t windows) {
  const Operands operands = row.make(mesh, 4), plain = operands.local();
  const auto window = [&](const Operands& of) { return seconds_per_call(500, [&] { Tensor result = row(of); }); };
  window(operands), window(plain);
  Samples samples;
  const std::int64_t made = plan_counts().made;
  for (std::int64_t w = 0; w < windows; ++w) {
    const double of_distributed = window(operands);
    samples.add(of_distributed, window(plain));
  }
  check(plan_counts().made == made, "{} made a plan at a call that was known", row.name);
  return samples;
}

// Every call has sizes that were not seen before.
Samples misses(const DtensorCall& row, const DeviceMesh& mesh, std::int64_t calls) {
  static std::int64_t n = 4;
  Samples samples;
  for (std::int64_t i = 0; i < calls; ++i) {
    const Operands operands = row.make(mesh, ++n), plain = operands.local();
    const std::int64_t made = plan_counts().made;
    Tensor result;
    const double of_distributed = seconds_of([&] { result = row(operands); });
    check(plan_counts().made == made + 1, "{} found a plan at a call that is new", row.name);
    samples.add(of_distributed, seconds_of([&] { result = row(plain); }));
  }
  return samples;
}

Ready begin_dtensor(std::span<const std::string_view> args) {
  take_flags(args, {});
  const auto groups = make_thread_groups(2);
  const DeviceMesh mesh(groups[0]);
  return {sherd_greeting(), [groups, mesh](const std::string& request) -> nlohmann::json {
            const DtensorCall rows[] = {
                {"add", 2, 2, Shard(0), [](const Tensor& a, const Tensor& b) { return add(a, b); }},
                {"mul", 2, 2, Shard(0), [](const Tensor& a, const Tensor& b) { return mul(a, b); }},
                {"linear", 1, 8, Replicate(), [](const Tensor& a, const Tensor& b) { return linear(a, b); }}};
            const auto [words, numbers] = asked(request, "hit|miss COUNT");
            const GradMode off(false);
            nlohmann::json answer;
            double worst = 0;
            for (const DtensorCall& row : rows) {
              const Samples samples = (words[0] == "hit" ? hits : misses)(row, mesh, numbers[0]);
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
          }};
}

// `collectives` under `sherd run`: seconds of one call; BYTES are of the full f32 tensor. Shards and gradients lie
// where fully_shard keeps them.
class Collectives {
 public:
  Collectives(ProcessGroup& group, std::int64_t elements)
      : group_(group),
        counts_(static_cast<std::size_t>(group.size()), elements / group.size()),
        shard_(filled(counts_[0], MemoryCategory::parameters, group.rank() + 1)),
        gathered_(filled(elements, MemoryCategory::unsharded, 0)),
        gradients_(filled(elements, MemoryCategory::gradients, group.rank() + 1)),
        reduced_(filled(counts_[0], MemoryCategory::gradients, 0)) {}

  void all_gather() { group_.host().all_gather({{.in = {shard_.raw()}, .out = {gathered_.raw()}, .counts = counts_}}); }
  void reduce_scatter() {
    group_.host().reduce_scatter({{.in = {gradients_.raw()}, .out = {reduced_.raw()}, .counts = counts_}}, {});
  }
  /// Rank r's part holds r + 1, and a sum of all is 1 + ... + ranks.
  void check_results() const {
    const int ranks = group_.size();
    for (const int r : up_to(ranks))
      check(gathered_.data<float>()[(r + 1) * counts_[0] - 1] == static_cast<float>(r + 1),
            "collectives: all_gather brought wrong data of rank {}", r);
    check(reduced_.data<float>()[counts_[0] - 1] == static_cast<float>(ranks * (ranks + 1) / 2),
          "collectives: reduce_scatter gave a wrong sum");
  }

 private:
  static Tensor filled(std::int64_t count, MemoryCategory category, int number) {
    Tensor buffer = Tensor::empty({count}, DType::f32, Device::cpu(), category);
    std::fill_n(buffer.mutable_data<float>(), count, static_cast<float>(number));
    return buffer;
  }

  ProcessGroup& group_;
  std::vector<std::int64_t> counts_;
  Tensor shard_, gathered_, gradients_, reduced_;
};

Ready begin_collectives(std::span<const std::string_view> args) {
  const std::shared_ptr<ProcessGroup> group = take_group(args);
  const auto answer = [group, buffers = std::shared_ptr<Collectives>(),
                       size = std::int64_t{0}](const std::string& request) mutable -> nlohmann::json {
    const auto [words, numbers] = asked(request, "all_gather|reduce_scatter BYTES CALLS");
    check(numbers[0] % (64 * group->size()) == 0, "collectives: {} bytes do not divide by 64 per rank", numbers[0]);
    if (std::exchange(size, numbers[0]) != numbers[0]) buffers = std::make_shared<Collectives>(*group, numbers[0] / 4);
    buffers->all_gather();  // both are warm, and both are checked
    buffers->reduce_scatter();
    buffers->check_results();
    group->host().barrier();
    const auto call = words[0] == "all_gather" ? &Collectives::all_gather : &Collectives::reduce_scatter;
    return {{"seconds", {seconds_per_call(numbers[1], [&] { (*buffers.*call)(); })}}};
  };
  return {sherd_greeting(), answer, group};
}

// `units [--sharded false] [--units N]`: 32 units of two 16 x 16 linears, so that the host's work is all there is.
// Asked for forward and backward of a batch of 8 ("step"), a step of AdamW over their parameters, fully_shard() of all
// units of a fresh model, nothing captured; or for the call of a captured forward and backward that records it.
constexpr std::int64_t kWidth = 16, kBatch = 8;

struct UnitPair : nn::Layer<UnitPair> {
  nn::Linear& first = add<nn::Linear>("first", kWidth, kWidth);
  nn::Linear& second = add<nn::Linear>("second", kWidth, kWidth);
  Tensor forward(const Tensor& x) { return second(first(x)); }  // [B, 16] -> [B, 16]
};

struct Units : nn::Layer<Units> {
  nn::ModuleList<UnitPair>& units = add<nn::ModuleList<UnitPair>>("units");
  explicit Units(std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) units.append();
  }
  Tensor forward(Tensor x) {
    for (UnitPair* unit : units.items()) x = (*unit)(x);
    return x;
  }
  void shard(const DeviceMesh& mesh) {
    for (UnitPair* unit : units.items()) nn::fully_shard(*unit, mesh);
    nn::fully_shard(*this, mesh);
  }
};

class UnitsRun {
 public:
  UnitsRun(std::int64_t units, bool sharded, const std::shared_ptr<ProcessGroup>& group)
      : group_(group), units_(units), model_(units) {
    if (sharded) model_.shard(DeviceMesh(group_, "dp"));
    model_.materialize(nn::Seed{1});
    optimizer_ = std::make_unique<nn::AdamW>(model_.parameters(), nn::AdamW::Options{.lr = 1e-6});
    x_ = random_normal({kBatch, kWidth}, random_key(2, "x", "data", static_cast<std::uint64_t>(group_->rank())));
  }

  nlohmann::json answer(const std::string& request) {
    const auto [words, numbers] = asked(request, "step|adamw|wrap|record COUNT");
    constexpr int kWarming = 3;
    std::vector<double> seconds = samples_of(kWarming + numbers[0], [&] {
      const double taken = seconds_of_round(words[0]);
      optimizer_->clear_gradients();
      return taken;
    });
    seconds.erase(seconds.begin(), seconds.begin() + kWarming);
    return {{"seconds", seconds}};
  }

 private:
  void differentiate() { backward(sum(model_(x_))); }
  template <class Do>
  double seconds_to(const Do& work) {
    group_->host().barrier();
    return seconds_of(work);
  }
  double seconds_of_round(const std::string& kind) {
    if (kind == "step") return seconds_to([&] { differentiate(); });
    if (kind == "adamw") {
      differentiate();
      return seconds_to([&] { optimizer_->step(); });
    }
    if (kind == "wrap") {
      Units fresh(units_);
      const DeviceMesh mesh(group_, "dp");
      return seconds_to([&] { fresh.shard(mesh); });
    }
    CompiledStep captured(
        [&](std::span<const Tensor>) {
          differentiate();
          optimizer_->clear_gradients();
          return std::vector<Tensor>{};
        },
        {.compare = false});
    captured({});
    return seconds_to([&] { captured({}); });
  }

  std::shared_ptr<ProcessGroup> group_;
  const std::int64_t units_;
  Units model_;
  std::unique_ptr<nn::AdamW> optimizer_;
  Tensor x_;
};

Ready begin_units(std::span<const std::string_view> args) {
  bool sharded = true;
  std::int64_t units = 32;
  const std::shared_ptr<ProcessGroup> group = take_group(args, {{"sharded", &sharded}, {"units", &units}});
  set_threads(1);
  return ready<UnitsRun>(sherd_greeting(), group, units, sharded, group);
}

constexpr Works::value_type kCallWorks[] = {{"gemm", begin_gemm},       {"fma", begin_fma},
                                            {"reduce", begin_reduce},   {"dispatch", begin_dispatch},
                                            {"dtensor", begin_dtensor}, {"collectives", begin_collectives},
                                            {"units", begin_units}};

}  // namespace

Works call_works() { return kCallWorks; }

}  // namespace sherd::bench
