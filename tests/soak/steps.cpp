// soak_steps [--steps N] [--seconds N] [--seed N] [--only PHASE] [--group thread|shm]: training steps of which many are
// left by an exception at a random op, on one rank or on several, under every strategy, with random micro-batches, and
// units and parameters that are unused or frozen.
//
//   subject   on 4 ranks, threads or processes, perhaps captured: is left, reset, loaded where it is torn, and makes
//             the step then
//   twin      the same, and nothing ever happens to it                the same bits after every step
//   whole     all of the batch on one rank, in f32                    as near as the precision allows
//
// Nobody may hang or keep memory. Prints one line, and where a step went wrong its seed and phase, which repeat it, and
// what was drawn for them.
#include <algorithm>
#include <charconv>
#include <filesystem>
#include <limits>

#include "compile/compile.h"
#include "nn/checkpoint/full/full_state.h"
#include "nn/layers/dropout.h"
#include "nn/optim/adamw.h"
#include "nn/optim/clip.h"
#include "nn/optim/loss_scaler.h"
#include "nn/parallel/extensions/int8_gather.h"
#include "nn/parallel/extensions/int8_reduce.h"
#include "nn/parallel/shard/unit/unit_slices.h"
#include "runtime/autograd/autograd.h"
#include "runtime/comm/board/shm_group.h"
#include "runtime/comm/group/agree.h"
#include "tests/parallel/nets.h"
#include "tests/soak/plan.h"
#include "tests/soak/watch.h"
#include "tests/support/near.h"
#include "tests/support/op_trap.h"
#include "tests/support/page_store.h"
#include "tests/support/processes.h"
#include "tests/support/ranks.h"

namespace sherd::testing {
namespace {

using Group = std::shared_ptr<ProcessGroup>;
using Clock = std::chrono::steady_clock;

constexpr std::uint64_t kStepsPerPhase = 10, kBatchesPerStep = 8;
constexpr std::int64_t kIn = 6, kOut = 3, kRows = 2;  // rows of a rank
constexpr double kMaxNorm = 0.1, kNoLimit = std::numeric_limits<double>::infinity();
constexpr std::int64_t kBytesInFlight = 4096;                                      // the least: the model is small
constexpr nn::LossScaler::Options kScale{.init_scale = 16, .growth_interval = 4};  // no gradient overflows: none skips
constexpr std::chrono::seconds kSoon{20};  // a step that is left, and the reset: on a machine that is busy
constexpr std::chrono::seconds kHangs{60};
// KB a step; KB in all, below which a short run cannot tell.
constexpr double kSlopeLimit = 0.1, kNoise = 4096;

struct Options {
  std::uint64_t steps = 10'000, seed = 1, first_phase = 0;
  std::chrono::seconds time = std::chrono::hours(24);
  bool is_only_one = false;
  bool in_processes = false;
  std::string name() const { return fmt::format("soak: seed {}", seed); }
};

/// What has happened so far.
struct Tally {
  std::uint64_t steps = 0, phases = 0, captured = 0, left = 0, torn = 0, dropped = 0, replayed = 0;
  /// A captured phase has ten steps of equal work, so some are replays.
  bool replays() const { return captured < kSomeCaptured || replayed > 0; }
  static constexpr std::uint64_t kSomeCaptured = 5;
};

/// silu of one of two linears: smooth, so that rounding nowhere decides.
struct Choosing : nn::Layer<Choosing> {
  nn::Linear &a, &b;
  bool uses_a = true;
  Choosing(std::int64_t in, std::int64_t out) : a(add<nn::Linear>("a", in, out)), b(add<nn::Linear>("b", in, out)) {}
  Tensor forward(const Tensor& x) { return silu(uses_a ? a(x) : b(x)); }
};

/// With dropout behind each block, whose masks go by how often it was called in the step.
struct ChoosingNet : nn::Layer<ChoosingNet> {
  nn::ModuleList<Choosing>& blocks;
  nn::Linear& head;
  nn::Dropout& drop;
  bool skips_last = false;
  ChoosingNet()
      : blocks(add<nn::ModuleList<Choosing>>("blocks")),
        head(add<nn::Linear>("head", 5, kOut)),
        drop(add<nn::Dropout>("drop", 0.2)) {
    for (const auto& [in, out] : {std::pair{kIn, 7L}, {7L, 5L}, {5L, 5L}}) blocks.append(in, out);
  }
  Tensor forward(Tensor x) {
    for (int b = 0; b < kBlocks - (skips_last ? 1 : 0); ++b) x = drop(block(b)(x));
    return head(x);
  }
  void choose(const PassPlan& pass, int rank) {
    skips_last = pass.skips_last;
    for (int b = 0; b < kBlocks; ++b) block(b).uses_a = (pass.uses[static_cast<std::size_t>(rank)] >> b & 1U) != 0;
  }
  void freeze(std::uint32_t frozen) {
    for (int b = 0; b < kBlocks; ++b)
      for (int i = 0; i < 2; ++i)
        for (nn::Parameter* p : (i == 0 ? block(b).a : block(b).b).parameters())
          if (const bool trains = (frozen >> (2 * b + i) & 1U) == 0; p->requires_grad() != trains)
            p->set_requires_grad(trains);
  }
  Choosing& block(int b) { return *blocks.items()[static_cast<std::size_t>(b)]; }
};

/// A model in training.
struct Training {
  ChoosingNet net;
  std::unique_ptr<nn::AdamW> optimizer;
  std::unique_ptr<nn::LossScaler> scaler;  // null: the loss is not scaled

  /// Whole without a mesh.
  Training(const PhasePlan& plan, const DeviceMesh* mesh, bool is_offloaded = false) {
    const std::string folder = std::filesystem::temp_directory_path().string();
    if (mesh) {
      nn::UnitPolicy root = plan.policy;
      if (is_offloaded)
        root.offload =
            nn::ShardOffload{.folder = folder, .gradients = plan.offloads_gradients, .bytes_in_flight = kBytesInFlight};
      nn::UnitPolicy blocks = root;
      blocks.mp_policy.output_dtype.reset();  // of the model's output alone
      shard(net, *mesh, blocks, root);
      nn::units(net).set_reshard_after_backward(!plan.keeps_gathered);
      if (plan.in_8_bits) communicate_in_8_bits();
      if (plan.scales_loss) scaler = std::make_unique<nn::LossScaler>(kScale);
    }
    net.materialize(nn::Seed{plan.seed});
    optimizer = std::make_unique<nn::AdamW>(net.parameters(), nn::AdamW::Options{.lr = 0.01, .eps = 1e-3});
    if (is_offloaded) optimizer->offload({.folder = folder, .bytes_in_flight = kBytesInFlight});
  }
  void communicate_in_8_bits() {
    for (const nn::UnitHandle& unit : nn::units(net)) {
      unit.set_gather_transform(nn::int8_gather());
      unit.set_custom_reduce(nn::int8_reduce());
    }
  }
  Tensor scaled(const Tensor& loss) { return scaler ? scaler->scale(loss) : loss; }
  void update(bool clips) {
    if (scaler) scaler->unscale(*optimizer, clips ? kMaxNorm : kNoLimit);
    else if (clips) nn::clip_grad_norm(*optimizer, kMaxNorm);
    optimizer->step_and_clear();
    if (scaler) scaler->update();
  }
  double updates() { return optimizer->step_slot().value().item<double>(); }
  /// This rank's parameters, their state, counts and the scale.
  std::vector<std::vector<float>> state() {
    std::vector<std::vector<float>> all;
    for (const nn::StateEntry& entry : nn::training_state(net, optimizer.get(), scaler.get()))
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
  Phase(const Group& group, const DeviceMesh& mesh, const Options& options, std::uint64_t number, Watchdog& watchdog)
      : group_(group),
        number_(number),
        watchdog_(watchdog),
        draw_(options.seed, number),
        plan_(draw_.phase()),
        subject_(plan_, &mesh, plan_.is_offloaded),
        twin_(plan_, &mesh),
        whole_(plan_, nullptr),
        captured_([this](std::span<const Tensor> in) { return step_that_may_raise(in); },
                  {.group = nullptr, .memory_budget = plan_.has_budget ? "100%" : "none"}) {}

  void run(Tally& tally) {
    try {
      for (step_ = 0; step_ < kStepsPerPhase; ++step_, ++tally.steps) {
        now_ = draw_.step();
        make_step(tally);
      }
      say("compares the state");
      check(subject_.state() == twin_.state(), "the optimizer's state differs from that of the run without exceptions");
    } catch (Error& error) {
      error.add("soak", place());
      throw;
    }
    ++tally.phases;
    if (plan_.is_captured) ++tally.captured;
  }

 private:
  std::string place() const {
    return fmt::format("phase {} ({}), step {} ({})", number_, plan_.name(), step_, now_.text());
  }
  void say(std::string_view what) { watchdog_.at(group_->rank(), fmt::format("{}: {}", place(), what)); }

  void make_step(Tally& tally) {
    for (ChoosingNet* net : {&subject_.net, &twin_.net, &whole_.net}) net->freeze(now_.work.frozen);
    if (now_.evaluates) evaluate();
    if (now_.is_dropped) drop(tally);
    if (now_.is_left) leave(tally);
    const bool is_over = subject_.updates() != twin_.updates();  // it was before the exception
    if (!is_over) {
      say("the subject trains");
      if (!plan_.is_captured) train(subject_);
      else if (train_captured(0) == CompiledStep::Mode::replay) ++tally.replayed;
    }
    say("the twin trains");
    {
      const std::vector<Tensor> in = inputs(group_->rank());
      const std::int64_t before = held(MemoryCategory::unsharded);
      const OpTrap counting(-1);
      train(twin_, in);
      ops_per_pass_ = static_cast<double>(counting.count()) / static_cast<double>(now_.work.passes.size());
      twin_holds_ += held(MemoryCategory::unsharded) - before;
    }
    if (is_over) take_scale();
    say("the whole model trains");
    train_whole();
    compare();
  }

  Tensor rows(std::string_view what, std::int64_t width, std::size_t pass, int rank) const {
    const std::uint64_t batch = (number_ * kStepsPerPhase + step_) * kBatchesPerStep + pass;
    return narrow(batch_of(kRanks * kRows, width, batch, what), 0, rank * kRows, kRows);
  }
  /// Inputs of a rank's passes: x, y, x, y, ...
  std::vector<Tensor> inputs(int rank) const {
    std::vector<Tensor> in;
    for (std::size_t i = 0; i < now_.work.passes.size(); ++i) {
      in.push_back(rows("x", kIn, i, rank));
      in.push_back(rows("y", kOut, i, rank));
    }
    return in;
  }
  Tensor loss(ChoosingNet& net, std::size_t pass, int rank, std::span<const Tensor> in) const {
    net.choose(now_.work.passes[pass], rank);
    return mean_square(net(in[2 * pass]), in[2 * pass + 1]);
  }

  /// The first `count` passes, and what ends them if these are all.
  void make_passes(Training& training, std::span<const Tensor> in, std::size_t count) const {
    const StepWork& work = now_.work;
    ChoosingNet& net = training.net;
    nn::units(net).set_reduce_unused(work.reduces_unused);
    nn::unit_of(net).set_is_last_backward(!work.ends_by_hand);
    for (std::size_t i = 0; i < count; ++i) {
      nn::units(net).set_requires_gradient_sync(work.passes[i].syncs);
      nn::units(net).set_requires_all_reduce(work.passes[i].all_reduces);
      backward(training.scaled(loss(net, i, group_->rank(), in)));
    }
    if (!work.ends_by_hand || count < work.passes.size()) return;
    nn::units(net).set_requires_gradient_sync(true);
    nn::units(net).set_requires_all_reduce(true);
    nn::unit_of(net).set_is_last_backward(true);
    nn::finalize_backward(net);
  }
  void train(Training& training, std::span<const Tensor> in) const {
    nn::set_step(static_cast<std::int64_t>(step_));
    make_passes(training, in, now_.work.passes.size());
    training.update(now_.work.clips);
  }
  void train(Training& training) const { train(training, inputs(group_->rank())); }

  /// The subject's step with a row number behind its inputs: one that is not there raises before the update, in a
  /// replay too.
  std::vector<Tensor> step_that_may_raise(std::span<const Tensor> in) {
    make_passes(subject_, in, now_.work.passes.size());
    const Tensor row = embedding(in[0], in.back());
    subject_.update(now_.work.clips);
    return {sum(row)};
  }
  CompiledStep::Mode train_captured(std::int64_t row) {
    std::vector<Tensor> in = inputs(group_->rank());
    in.push_back(Tensor::from<std::int64_t>({row}, {1}));
    nn::set_step(static_cast<std::int64_t>(step_));
    captured_(in);
    return captured_.mode();
  }

  void evaluate() {
    say("the subject is evaluated");
    const GradMode off(false);
    subject_.net.choose({}, group_->rank());  // the same units on all ranks
    (void)subject_.net(rows("x", kIn, kBatchesPerStep - 1, group_->rank())).to_vector<float>();
  }

  /// Gradients that are cleared leave nothing to the step after them.
  void drop(Tally& tally) {
    say("the subject drops its gradients");
    make_passes(subject_, inputs(group_->rank()), std::max<std::size_t>(1, now_.work.passes.size() - 1));
    subject_.optimizer->clear_gradients();
    RankContext::current().drain_queues();
    check(held(MemoryCategory::gradients) == 0, "{} bytes of gradients are held when all are cleared",
          held(MemoryCategory::gradients));
    ++tally.dropped;
  }

  void try_step() {
    const bool is_victim = (now_.victims >> group_->rank() & 1U) != 0;
    if (now_.in_replay && captured_.mode() == CompiledStep::Mode::replay) {
      say(fmt::format("the subject {} in a replay", is_victim ? "throws" : "is left"));
      train_captured(is_victim ? kRows : 0);
      return;
    }
    const auto at = static_cast<std::int64_t>(now_.at * ops_per_pass_ * static_cast<double>(now_.work.passes.size()));
    say(fmt::format("the subject {} at op {}", is_victim ? "throws" : "is left", at));
    const std::vector<Tensor> in = inputs(group_->rank());
    const OpTrap trap(is_victim ? at : -1);
    train(subject_, in);
  }

  void leave(Tally& tally) {
    auto start = Clock::now();
    try {
      // An exception reaches peers wherever they are, which may be in the step before: meet in this one. Who is slow to
      // leave the barrier may find it in there.
      RankContext::current().drain_queues();
      group_->host().barrier();
      start = Clock::now();
      try_step();
    } catch (const Error&) {}  // of the trap, or of a rank that has met one
    subject_.optimizer->clear_gradients();
    nn::reset_after_error(subject_.net);
    check(Clock::now() - start < kSoon, "it takes more than {} s to leave a step", kSoon.count());
    check(held(MemoryCategory::unsharded) == twin_holds_,
          "{} bytes of unsharded are held after a step that was left, the twin holds {}",
          held(MemoryCategory::unsharded), twin_holds_);
    for (const MemoryCategory c : {MemoryCategory::gradients, MemoryCategory::communication})
      check(held(c) == 0, "{} bytes of {} are held after a step that was left", held(c), name(c));
    ++tally.left;
    if (subject_.optimizer->torn().empty()) return;
    ++tally.torn;
    check(is_refused([&] { subject_.optimizer->step(); }), "a torn optimizer makes a step");
    say("the subject is loaded");
    nn::load_full_state_dict(subject_.net, *group_, nn::full_state_dict(twin_.net, *group_, twin_.optimizer.get()),
                             subject_.optimizer.get());
    take_scale();
    check(subject_.optimizer->torn().empty(), "it is torn after a load: {}", subject_.optimizer->torn());
    twin_holds_ = held(MemoryCategory::unsharded);  // it was resharded to be read, as the subject is
  }

  /// The subject's scale and its counts are the twin's, as of a checkpoint: its last update may have been left.
  void take_scale() {
    if (!subject_.scaler) return;
    const auto from = twin_.scaler->state(), to = subject_.scaler->state();
    for (std::size_t i = 0; i < to.size(); ++i) to[i].second->assign(from[i].second->value());
  }

  void train_whole() {
    for (int rank = 0; rank < kRanks; ++rank) {
      const std::vector<Tensor> in = inputs(rank);
      nn::set_step(static_cast<std::int64_t>(step_));
      nn::set_batch_part(nn::BatchPart{rank, 1, kRanks});
      for (std::size_t i = 0; i < now_.work.passes.size(); ++i)
        backward(loss(whole_.net, i, rank, in) * (1.0 / kRanks));
    }
    nn::set_batch_part(std::nullopt);
    if (now_.work.reduces_unused)
      for (nn::Parameter* p : whole_.net.parameters())
        if (p->requires_grad() && !p->grad().defined()) p->set_grad(zeros(p->shape()));
    whole_.update(now_.work.clips);
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

  const Group group_;
  const std::uint64_t number_;
  Watchdog& watchdog_;
  PhaseDraws draw_;
  const PhasePlan plan_;
  Training subject_, twin_, whole_;
  CompiledStep captured_;  // of the subject; ranks that use different linears have different programs
  std::uint64_t step_ = 0;
  StepPlan now_;                 // of that step
  double ops_per_pass_ = 60;     // until the twin has counted them
  std::int64_t twin_holds_ = 0;  // gathered, of units that no update has written: frozen, or unused
};

/// What a rank holds between phases.
struct Held {
  std::int64_t bytes = 0;
  std::size_t slots = 0;
  static Held now() {
    RankContext& context = RankContext::current();
    context.drain_queues();
    return {context.allocator().accounting().total(), living_slots().size()};
  }
};

/// All phases on one rank; rank 0's say what has happened, and when it is time to end. `resident` is null where another
/// rank of the process samples.
void run_phases(const Group& group, const Options& options, Watchdog& watchdog, Tally& tally, Resident* resident) {
  const auto start = Clock::now();
  const DeviceMesh line(group), grid(group, {{"replicate", 2}, {"dp", 2}});
  const DeviceMesh split = nn::split_for_slices(line, 2);  // its groups are made once
  Held usual;
  for (std::uint64_t number = options.first_phase;; ++number) {
    const bool is_grid = phases()[number % phases().size()].is_grid;
    Phase(group, is_grid ? grid : line, options, number, watchdog).run(tally);
    const Held now = Held::now();
    if (tally.phases <= phases().size()) usual = now;
    check(now.bytes == usual.bytes && now.slots == usual.slots,
          "after phase {} a rank holds {} bytes and {} slots, after the first round of all {} and {}", number,
          now.bytes, now.slots, usual.bytes, usual.slots);
    const bool is_over = options.is_only_one || tally.steps >= options.steps || Clock::now() - start >= options.time;
    const bool ends = !gather_text(*group, is_over ? "over" : "")[0].empty();
    if (tally.phases % phases().size() == 0 && resident) resident->sample(static_cast<double>(tally.steps));
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
    if (flag == "--group") {
      const std::string group = args[i + 1];
      check(group == "thread" || group == "shm", "--group is thread or shm, not \"{}\"", group);
      options.in_processes = group == "shm";
      continue;
    }
    const std::uint64_t value = number_of(args[i + 1]);
    if (flag == "--steps") options.steps = value;
    else if (flag == "--seconds") options.time = std::chrono::seconds(value);
    else if (flag == "--seed") options.seed = value;
    else if (flag == "--only") {
      options.first_phase = value;
      options.is_only_one = true;
    } else fail("soak_steps has no flag \"{}\": --steps N --seconds N --seed N --only PHASE --group thread|shm", flag);
  }
  return options;
}

/// run_phases(); what goes wrong is said at once: the first rank to say so is the cause.
void run_rank(const Group& group, const Options& options, Watchdog& watchdog, Tally& tally, Resident* resident) {
  try {
    run_phases(group, options, watchdog, tally, resident);
  } catch (const std::exception& error) {
    fmt::print(stderr, "soak: rank {}: {}\n", group->rank(), error.what());
    throw;
  }
}

constexpr const char* kNoReplay = "no captured step was replayed";

bool grows(const std::optional<Resident::Slope>& slope) {
  return slope && slope->kb_per_step > kSlopeLimit && slope->kb_per_step * slope->steps > kNoise;
}

std::string text_of(const std::optional<Resident::Slope>& slope) {
  return slope ? fmt::format("{:+.3f}", slope->kb_per_step) : "not measured: too few";
}

/// `memory` is what it says of each process.
void report(const Options& options, const Tally& tally, std::string_view memory, Clock::time_point start,
            std::string_view end) {
  fmt::print(
      "{}: {} steps in {} phases on {} {}, {} replayed, {} left ({} torn), {} dropped; memory {} KB a step; {:.0f} s: "
      "{}\n",
      options.name(), tally.steps, tally.phases, kRanks, options.in_processes ? "processes" : "ranks", tally.replayed,
      tally.left, tally.torn, tally.dropped, memory, std::chrono::duration<double>(Clock::now() - start).count(), end);
}

int soak_threads(const Options& options) {
  const auto start = Clock::now();
  Tally tally;  // rank 0's
  Resident resident;
  std::string wrong;
  try {
    Watchdog watchdog(options.name(), kHangs);
    run_ranks(kRanks, [&](const Group& group) {
      Tally own;
      const bool is_first = group->rank() == 0;
      run_rank(group, options, watchdog, is_first ? tally : own, is_first ? &resident : nullptr);
    });
  } catch (const std::exception& error) { wrong = error.what(); }
  const auto slope = resident.slope();
  if (wrong.empty() && grows(slope)) wrong = "memory grows";
  if (wrong.empty() && !tally.replays()) wrong = kNoReplay;
  report(options, tally, text_of(slope), start, wrong.empty() ? "passed" : wrong);
  return wrong.empty() ? 0 : 1;
}

/// One rank of soak_processes(). Rank 0 reports for all.
void soak_process(const Group& group, const Options& options) {
  const auto start = Clock::now();
  Tally tally;
  Resident resident;
  Watchdog watchdog(options.name(), kHangs);
  run_rank(group, options, watchdog, tally, &resident);
  const auto slope = resident.slope();
  std::string memory;
  for (const std::string& of_rank : gather_text(*group, text_of(slope)))
    memory += fmt::format("{}{}", memory.empty() ? "" : ", ", of_rank);
  const std::vector<std::string> grow = gather_text(*group, grows(slope) ? "grows" : "");
  const std::string wrong = !std::ranges::all_of(grow, &std::string::empty) ? "memory grows"
                            : tally.replays()                               ? ""
                                                                            : kNoReplay;
  if (group->rank() == 0) report(options, tally, memory, start, wrong.empty() ? "passed" : wrong);
  if (!wrong.empty()) fail("{}", wrong);
}

int soak_processes(const Options& options) {
  PageStore store;
  const std::vector<RankEnd> ends = fork_ranks(
      store, kRanks, [&](Store& shared, int rank) { soak_process(make_shm_group(shared, rank, kRanks), options); },
      std::chrono::seconds(0));
  bool is_good = true;
  for (std::size_t rank = 0; rank < ends.size(); ++rank) {
    if (ends[rank].status == 0) continue;
    is_good = false;
    fmt::print("{}: rank {} ended with status {}: {}\n", options.name(), rank, ends[rank].status, ends[rank].message);
  }
  return is_good ? 0 : 1;
}

int soak(const Options& options) { return options.in_processes ? soak_processes(options) : soak_threads(options); }

}  // namespace
}  // namespace sherd::testing

int main(int argc, char** argv) {
  ::mallopt(M_ARENA_MAX, 1);  // what the arenas of four threads hold of a phase comes and goes by megabytes
  try {
    return sherd::testing::soak(sherd::testing::parse({argv + 1, static_cast<std::size_t>(argc - 1)}));
  } catch (const std::exception& error) {
    fmt::print(stderr, "soak_steps: {}\n", error.what());
    return 2;
  }
}
