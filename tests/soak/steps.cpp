// soak_steps [--steps N] [--seconds N] [--seed N] [--only PHASE]: training steps of which many are left by an exception
// at a random op, on one rank or on several, under every strategy, with random micro-batches and unused parameters.
//
//   subject   on 4 ranks; is left, reset, loaded where it is torn, and makes the step then
//   twin      the same, and nothing ever happens to it                the same bits after every step
//   whole     all of the batch on one rank, in f32                    as near as the precision allows
//
// Nobody may hang or keep memory. Prints one line, and where a step went wrong its seed and phase, which repeat it.
#include <charconv>

#include "nn/checkpoint/full_state.h"
#include "nn/optim/adamw.h"
#include "nn/optim/clip.h"
#include "runtime/autograd/autograd.h"
#include "runtime/comm/group/agree.h"
#include "tests/parallel/nets.h"
#include "tests/soak/plan.h"
#include "tests/soak/watch.h"
#include "tests/support/near.h"
#include "tests/support/op_trap.h"
#include "tests/support/ranks.h"

namespace sherd::testing {
namespace {

using Group = std::shared_ptr<ProcessGroup>;
using Clock = std::chrono::steady_clock;

constexpr std::uint64_t kStepsPerPhase = 10, kBatchesPerStep = 8;
constexpr std::int64_t kIn = 6, kOut = 3, kRows = 2;  // rows of a rank
constexpr double kMaxNorm = 0.1;
constexpr std::chrono::seconds kSoon{20};  // a step that is left, and the reset: on a machine that is busy
constexpr std::chrono::seconds kHangs{60};
constexpr double kSlopeLimit = 0.1, kNoise = 700;  // KB a step; KB in all, below which a short run cannot tell

struct Options {
  std::uint64_t steps = 10'000, seed = 1, first_phase = 0;
  std::chrono::seconds time = std::chrono::hours(24);
  bool is_only_one = false;
};

/// What has happened so far.
struct Tally {
  std::uint64_t steps = 0, phases = 0, left = 0, torn = 0, dropped = 0;
};

/// silu of one of two linears: smooth, so that rounding nowhere decides.
struct Choosing : nn::Layer<Choosing> {
  nn::Linear &a, &b;
  bool uses_a = true;
  Choosing(std::int64_t in, std::int64_t out) : a(add<nn::Linear>("a", in, out)), b(add<nn::Linear>("b", in, out)) {}
  Tensor forward(const Tensor& x) { return silu(uses_a ? a(x) : b(x)); }
};

struct ChoosingNet : nn::Layer<ChoosingNet> {
  nn::ModuleList<Choosing>& blocks;
  nn::Linear& head;
  ChoosingNet() : blocks(add<nn::ModuleList<Choosing>>("blocks")), head(add<nn::Linear>("head", 5, kOut)) {
    blocks.append(kIn, 7);
    blocks.append(7, 5);
  }
  Tensor forward(Tensor x) {
    for (Choosing* block : blocks.items()) x = (*block)(x);
    return head(x);
  }
  void choose(std::uint32_t uses) {
    for (std::size_t b = 0; b < blocks.items().size(); ++b) blocks.items()[b]->uses_a = (uses >> b & 1U) != 0;
  }
};

/// A model in training.
struct Training {
  ChoosingNet net;
  std::unique_ptr<nn::AdamW> optimizer;

  /// Whole without a mesh.
  Training(const PhasePlan& plan, const DeviceMesh* mesh) {
    if (mesh) {
      nn::FullyShardOptions blocks = plan.policy;
      blocks.mp_policy.output_dtype.reset();  // of the model's output alone
      shard(net, *mesh, blocks, plan.policy);
      nn::set_reshard_after_backward(net, !plan.keeps_gathered);
    }
    net.materialize(nn::Seed{plan.seed});
    optimizer = std::make_unique<nn::AdamW>(net.parameters(), nn::AdamWOptions{.lr = 0.01, .eps = 1e-3});
  }
  void update(bool clips) {
    if (clips) nn::clip_grad_norm(*optimizer, kMaxNorm);
    optimizer->step_and_clear();
  }
  double updates() { return optimizer->step_slot().value().item<double>(); }
  /// This rank's parameters, their state and counts.
  std::vector<std::vector<float>> state() {
    std::vector<std::vector<float>> all;
    for (const nn::StateEntry& entry : nn::training_state(net, optimizer.get()))
      all.push_back(nn::state_tensor(entry).local().detach().to_vector<float>());
    return all;
  }
};

void require(const ::testing::AssertionResult& result, std::string_view what) {
  if (!result) fail("{}: {}", what, result.message());
}

bool is_refused(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error&) { return true; }
  return false;
}

/// One phase on one rank.
class Phase {
 public:
  Phase(ProcessGroup& group, const DeviceMesh& mesh, const Options& options, std::uint64_t number, Watchdog& watchdog)
      : group_(group),
        number_(number),
        watchdog_(watchdog),
        draw_(options.seed, number),
        plan_(draw_.phase()),
        subject_(plan_, &mesh),
        twin_(plan_, &mesh),
        whole_(plan_, nullptr) {}

  void run(Tally& tally) {
    try {
      for (step_ = 0; step_ < kStepsPerPhase; ++step_, ++tally.steps) make_step(tally);
      say("compares the state");
      check(subject_.state() == twin_.state(), "the optimizer's state differs from that of the run without exceptions");
    } catch (Error& error) {
      error.add("soak", fmt::format("phase {} ({}), step {}", number_, plan_.name(), step_));
      throw;
    }
    ++tally.phases;
  }

 private:
  void say(std::string_view what) {
    watchdog_.at(group_.rank(), fmt::format("phase {} ({}), step {}: {}", number_, plan_.name(), step_, what));
  }

  void make_step(Tally& tally) {
    const StepPlan plan = draw_.step();
    if (plan.evaluates) evaluate();
    if (plan.is_dropped) drop(plan, tally);
    if (plan.is_left) leave(plan, tally);
    if (subject_.updates() == twin_.updates()) {  // else it was over before the exception
      say("the subject trains");
      make_passes(subject_, plan, plan.passes.size());
      subject_.update(plan.clips);
    }
    say("the twin trains");
    {
      const OpTrap counting(-1);
      make_passes(twin_, plan, plan.passes.size());
      twin_.update(plan.clips);
      ops_per_pass_ = static_cast<double>(counting.count()) / static_cast<double>(plan.passes.size());
    }
    say("the whole model trains");
    train_whole(plan);
    compare();
  }

  Tensor rows(std::string_view what, std::int64_t width, std::size_t pass, int rank) const {
    const std::uint64_t batch = (number_ * kStepsPerPhase + step_) * kBatchesPerStep + pass;
    return narrow(batch_of(kRanks * kRows, width, batch, what), 0, rank * kRows, kRows);
  }
  Tensor loss(ChoosingNet& net, const StepPlan& plan, std::size_t pass, int rank) const {
    net.choose(plan.passes[pass].uses[static_cast<std::size_t>(rank)]);
    return mean_square(net(rows("x", kIn, pass, rank)), rows("y", kOut, pass, rank));
  }

  /// The first `count` passes, and what ends them if these are all.
  void make_passes(Training& training, const StepPlan& plan, std::size_t count) const {
    ChoosingNet& net = training.net;
    nn::set_reduce_unused(net, plan.reduces_unused);
    nn::set_is_last_backward(net, !plan.ends_by_hand);
    for (std::size_t i = 0; i < count; ++i) {
      nn::set_requires_gradient_sync(net, plan.passes[i].syncs);
      nn::set_requires_all_reduce(net, plan.passes[i].all_reduces);
      backward(loss(net, plan, i, group_.rank()));
    }
    if (!plan.ends_by_hand || count < plan.passes.size()) return;
    nn::set_requires_gradient_sync(net, true);
    nn::set_requires_all_reduce(net, true);
    nn::set_is_last_backward(net, true);
    nn::finalize_backward(net);
  }

  void evaluate() {
    say("the subject is evaluated");
    const GradMode off(false);
    (void)subject_.net(rows("x", kIn, kBatchesPerStep - 1, group_.rank())).to_vector<float>();
  }

  /// Gradients that are cleared leave nothing to the step after them.
  void drop(const StepPlan& plan, Tally& tally) {
    say("the subject drops its gradients");
    make_passes(subject_, plan, std::max<std::size_t>(1, plan.passes.size() - 1));
    subject_.optimizer->clear_gradients();
    RankContext::current().drain_queues();
    check(held(MemoryCategory::gradients) == 0, "{} bytes of gradients are held when all are cleared",
          held(MemoryCategory::gradients));
    ++tally.dropped;
  }

  void leave(const StepPlan& plan, Tally& tally) {
    const auto at = static_cast<std::int64_t>(plan.at * ops_per_pass_ * static_cast<double>(plan.passes.size()));
    const bool is_victim = (plan.victims >> group_.rank() & 1U) != 0;
    say(fmt::format("the subject {} at op {}", is_victim ? "throws" : "is left", at));
    // An exception reaches peers wherever they are, which may be in the step before: meet in this one.
    RankContext::current().drain_queues();
    group_.host().barrier();
    const auto start = Clock::now();
    try {
      const OpTrap trap(is_victim ? at : -1);
      make_passes(subject_, plan, plan.passes.size());
      subject_.update(plan.clips);
    } catch (const Error&) {}  // of the trap, or of a rank that has met one
    subject_.optimizer->clear_gradients();
    nn::reset_after_error(subject_.net);
    check(Clock::now() - start < kSoon, "it takes more than {} s to leave a step", kSoon.count());
    for (const MemoryCategory c : {MemoryCategory::unsharded, MemoryCategory::gradients, MemoryCategory::communication})
      check(held(c) == 0, "{} bytes of {} are held after a step that was left", held(c), name(c));
    ++tally.left;
    if (subject_.optimizer->torn().empty()) return;
    ++tally.torn;
    check(is_refused([&] { subject_.optimizer->step(); }), "a torn optimizer makes a step");
    say("the subject is loaded");
    nn::load_full_state_dict(subject_.net, group_, nn::full_state_dict(twin_.net, group_, twin_.optimizer.get()),
                             subject_.optimizer.get());
    check(subject_.optimizer->torn().empty(), "it is torn after a load: {}", subject_.optimizer->torn());
  }

  void train_whole(const StepPlan& plan) {
    for (std::size_t i = 0; i < plan.passes.size(); ++i)
      for (int rank = 0; rank < kRanks; ++rank) backward(loss(whole_.net, plan, i, rank) * (1.0 / kRanks));
    if (plan.reduces_unused)
      for (nn::Parameter* p : whole_.net.parameters())
        if (!p->grad().defined()) p->set_grad(zeros(p->shape()));
    whole_.update(plan.clips);
  }

  void compare() {
    const auto a = subject_.net.parameters(), b = twin_.net.parameters(), c = whole_.net.parameters();
    for (std::size_t i = 0; i < a.size(); ++i) {
      const Tensor& value = a[i]->sharded_value();
      const Tensor local = value.local().detach();
      require(same_bits(local, b[i]->sharded_value().local().detach()), a[i]->name() + " and without exceptions");
      require(near(local, part_of(c[i]->value().detach(), value), plan_.limit), a[i]->name() + " and on one rank");
    }
  }

  ProcessGroup& group_;
  const std::uint64_t number_;
  Watchdog& watchdog_;
  Draw draw_;
  const PhasePlan plan_;
  Training subject_, twin_, whole_;
  std::uint64_t step_ = 0;
  double ops_per_pass_ = 60;  // until the twin has counted them
};

/// What a rank holds between phases.
struct Held {
  std::int64_t bytes = 0;
  std::size_t slots = 0;
  static Held now() {
    RankContext& context = RankContext::current();
    context.drain_queues();
    return {context.allocator().accounting().total(), context.slots.size()};
  }
};

/// All phases on one rank; rank 0's say what has happened, and when it is time to end.
void run_phases(const Group& group, const Options& options, Watchdog& watchdog, Tally& tally, Resident& resident) {
  const auto start = Clock::now();
  const DeviceMesh line(group), grid(group, {{"replicate", 2}, {"dp", 2}});
  Held usual;
  for (std::uint64_t number = options.first_phase;; ++number) {
    const bool is_grid = phases()[number % phases().size()].is_grid;
    Phase(*group, is_grid ? grid : line, options, number, watchdog).run(tally);
    const Held now = Held::now();
    if (tally.phases <= phases().size()) usual = now;
    check(now.bytes == usual.bytes && now.slots == usual.slots,
          "after phase {} a rank holds {} bytes and {} slots, after the first round of all {} and {}", number,
          now.bytes, now.slots, usual.bytes, usual.slots);
    const bool is_over = options.is_only_one || tally.steps >= options.steps || Clock::now() - start >= options.time;
    const bool ends = !gather_text(*group, is_over ? "over" : "")[0].empty();
    if (tally.phases % phases().size() == 0 && group->rank() == 0) resident.sample(static_cast<double>(tally.steps));
    group->host().barrier();  // where the others are meanwhile
    if (ends) return;
  }
}

std::uint64_t number_of(const std::string& text) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  check(error == std::errc() && end == text.data() + text.size(), "\"{}\" is no number", text);
  return value;
}

Options parse(std::span<char* const> args) {
  Options options;
  for (std::size_t i = 0; i < args.size(); i += 2) {
    const std::string flag = args[i];
    check(i + 1 < args.size(), "{} wants a value", flag);
    const std::uint64_t value = number_of(args[i + 1]);
    if (flag == "--steps") options.steps = value;
    else if (flag == "--seconds") options.time = std::chrono::seconds(value);
    else if (flag == "--seed") options.seed = value;
    else if (flag == "--only") {
      options.first_phase = value;
      options.is_only_one = true;
    } else fail("soak_steps has no flag \"{}\": --steps N --seconds N --seed N --only PHASE", flag);
  }
  return options;
}

int soak(const Options& options) {
  const auto start = Clock::now();
  const std::string what = fmt::format("soak: seed {}", options.seed);
  Tally tally;  // rank 0's
  Resident resident;
  std::string wrong;
  try {
    Watchdog watchdog(what, kHangs);
    run_ranks(kRanks, [&](const Group& group) {
      Tally own;
      try {
        run_phases(group, options, watchdog, group->rank() == 0 ? tally : own, resident);
      } catch (const std::exception& error) {
        fmt::print(stderr, "soak: rank {}: {}\n", group->rank(), error.what());  // the first is the cause
        throw;
      }
    });
  } catch (const std::exception& error) { wrong = error.what(); }
  const auto slope = resident.slope();
  if (wrong.empty() && slope && slope->kb_per_step > kSlopeLimit && slope->kb_per_step * slope->steps > kNoise)
    wrong = "memory grows";
  fmt::print(
      "{}: {} steps in {} phases on {} ranks, {} left ({} torn), {} dropped; memory {} KB a step; {:.0f} s: {}\n", what,
      tally.steps, tally.phases, kRanks, tally.left, tally.torn, tally.dropped,
      slope ? fmt::format("{:+.3f}", slope->kb_per_step) : "not measured: too few",
      std::chrono::duration<double>(Clock::now() - start).count(), wrong.empty() ? "passed" : wrong);
  return wrong.empty() ? 0 : 1;
}

}  // namespace
}  // namespace sherd::testing

int main(int argc, char** argv) {
  try {
    return sherd::testing::soak(sherd::testing::parse({argv + 1, static_cast<std::size_t>(argc - 1)}));
  } catch (const std::exception& error) {
    fmt::print(stderr, "soak_steps: {}\n", error.what());
    return 2;
  }
}
