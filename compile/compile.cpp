#include "compile/compile.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include <fmt/ranges.h>

#include "compile/capture/capture.h"
#include "compile/ir/analysis/sums.h"
#include "compile/ir/text/parse.h"
#include "compile/run/argument_copies.h"
#include "compile/run/bind.h"
#include "compile/run/device_replay.h"
#include "compile/run/fit.h"
#include "compile/run/footprint.h"
#include "compile/run/guard.h"
#include "compile/run/guards.h"
#include "compile/run/homes.h"
#include "compile/run/measure_prices.h"
#include "compile/run/replay.h"
#include "compile/run/same_program.h"
#include "compile/run/same_recording.h"
#include "runtime/autograd/slot.h"
#include "runtime/comm/group/agree.h"
#include "runtime/comm/job/world.h"
#include "runtime/exec/left_steps.h"
#include "runtime/op/core/tape_modes.h"
#include "runtime/os/settings.h"
#include "runtime/tensor/indices.h"

namespace sherd {

namespace {
using ir::Graph;

// A replay's results have no history, so no call's have.
void drop_history(std::vector<Tensor>& tensors) {
  for (Tensor& tensor : tensors)
    if (tensor.defined()) tensor = tensor.detach();
}

// What all ranks would say alike.
bool is_first_rank() {
  const std::shared_ptr<ProcessGroup>& world = known_world();
  return !world || world->rank() == 0;
}

std::shared_ptr<ProcessGroup> group_of(const CompileOptions& options) {
  return options.group ? *options.group : known_world();
}

// Null: no bytes leave memory.
std::unique_ptr<OffloadHomes> make_homes(const CompileOptions& options, const ir::Program& program) {
  if (!options.activations_folder) return nullptr;
  return std::make_unique<OffloadHomes>(device_of(program), *options.activations_folder);
}

// An Error of one rank is one of all that fit the step together.
void on_all(ProcessGroup* group, const std::function<void()>& run) {
  if (group) together(*group, run);
  else run();
}

void check_fits_here(const Graph& graph) {
  std::string differs = setting_mismatch(graph);
  if (differs.empty()) differs = slot_mismatch(graph);
  if (!differs.empty()) fail("{}", differs);
}

// Peaks are those of `before`, a copy from then, and of what is held now: what was let go counts first.
void forget_peaks_since(const Accounting& before, Accounting& account) {
  Accounting again = before;
  for (const bool is_less : {true, false})
    for (std::size_t c = 0; c < before.current().size(); ++c)
      if (const std::int64_t bytes = account.current()[c] - before.current()[c]; (bytes < 0) == is_less)
        again.add(static_cast<MemoryCategory>(c), bytes);
  account = again;
}

// What the tape of the step would keep, a replay has decided.
void check_scopes() {
  const TapeModes& modes = tape_modes();
  check(!modes.saved_policy && !modes.segment_policy,
        "a captured step is called within a scope that offloads, or recomputes, what backward needs, and a replay "
        "would not: open the scope in the step");
  check(
      modes.leaves == 1,
      "a captured step is called within a pass over {} leaves, of which a replay knows nothing: open the scope in the "
      "step",
      modes.leaves);
}

}  // namespace

struct CompiledStep::Entry {
  Entry(ir::Program raw, Graph passed, std::uint64_t made)
      : recorded(std::move(raw)),
        graph(std::move(passed)),
        guards(graph),
        predictions(made),
        interpreter(std::make_unique<Interpreter>(graph)) {}
  const Graph& runs() const { return fitted ? *fitted : graph; }
  void choose_executor();

  const ir::Program recorded;  // before passes
  const Graph graph;           // after them, as it was recorded
  Guards guards;
  std::unique_ptr<const Graph> fitted;   // what is replayed, if it is another
  std::unique_ptr<OffloadHomes> homes;   // of constants that the step moves bytes to
  std::optional<Predicted> predicted{};  // once it is fitted
  std::optional<std::string> sums{};     // order_of_sums() of what runs, once somebody has asked
  bool is_confirmed = false;             // recorded again, with the same result
  bool is_second = false;                // in the place of another one, from which it may differ
  const std::uint64_t predictions;       // num_predictions() when it was recorded
  std::unique_ptr<Interpreter> interpreter;
  std::unique_ptr<DeviceReplay> device;
  std::string no_device;  // why a step on a device is not replayed by it
  bool is_decided = false;
};

// A step whose slots keep moving would be recorded at every call: the interpreter is faster then.
void CompiledStep::Entry::choose_executor() {
  constexpr int kMaxRecordings = 8;
  if (is_decided) return;
  if (!device) {
    const bool uses_device = device_of(runs().program) != Device::cpu();
    no_device = uses_device ? device_obstacle(runs()) : "";
    is_decided = !uses_device || !no_device.empty();
    if (!is_decided) device = std::make_unique<DeviceReplay>(runs(), *interpreter);
  } else if (device->num_recordings() > kMaxRecordings) {
    device.reset();
    no_device = "the tensors of its slots move from call to call";
    is_decided = true;
  }
}

CompiledStep::CompiledStep(Function function, Options options)
    : function_(std::move(function)), options_(std::move(options)) {
  check(options_.max_graphs > 0, "compile() needs room for at least one graph, got max_graphs = 0");
}
CompiledStep::~CompiledStep() = default;
CompiledStep::CompiledStep(CompiledStep&&) noexcept = default;
CompiledStep& CompiledStep::operator=(CompiledStep&&) noexcept = default;

const Graph* CompiledStep::graph() const { return entries_.empty() ? nullptr : &entries_.front()->runs(); }

const ir::Program* CompiledStep::recorded() const { return entries_.empty() ? nullptr : &entries_.front()->recorded; }

void CompiledStep::begin_with(ir::Program recorded) {
  Names names;
  std::unique_ptr<OffloadHomes> homes = make_homes(options_, recorded);
  if (homes) names.constants = take_homes(recorded, 0, *homes);
  Graph graph = bind(recorded, names);
  if (!begun_with_) check_fits_here(graph);  // after a step that was left, the next call looks
  run_passes(graph.program, options_.passes);
  entries_.insert(entries_.begin(), std::make_unique<Entry>(recorded, std::move(graph), num_predictions()));
  entries_.front()->is_confirmed = true;
  entries_.front()->homes = std::move(homes);
  begun_with_ = std::move(recorded);
  mode_ = Mode::record;
  reason_ = "by a ghost of this rank";
  num_left_ = num_left_steps();
  num_calls_ = 2;  // the next call compares
}

std::int64_t CompiledStep::num_looks() const { return entries_.empty() ? 0 : entries_.front()->guards.num_looks(); }

std::string CompiledStep::why() const {
  switch (mode_) {
    case Mode::none: return "not called yet";
    case Mode::eager: return "ran eagerly: " + reason_;
    case Mode::record: return "recorded: " + reason_;
    case Mode::replay: {
      Entry& entry = *entries_.front();
      if (!entry.sums) entry.sums = ir::order_of_sums(entry.runs().program);
      std::string text = "replayed" + reason_;
      for (const std::string& more : {entry.predicted ? entry.predicted->notes : std::string(), *entry.sums})
        if (!more.empty()) text += (text == "replayed" ? ": " : "; ") + more;
      return text;
    }
  }
  fail("unknown mode {}", static_cast<int>(mode_));
}

std::vector<Tensor> CompiledStep::operator()(std::span<const Tensor> arguments) {
  check(function_ != nullptr, "this captured step has no function: it was moved from, call the one it was moved to");
  if (RankContext::current().capture) {
    reason_ = "it is part of another captured step";
    return run_eagerly(arguments);
  }
  check_scopes();
  forget_before_reset();
  if (!refusal_.empty()) throw Error(refusal_);
  compare_programs(true);
  if (mode_ == Mode::none) {
    reason_ =
        num_left_ == 0 ? "lazy state settles in the first call" : "it is the first call after a step that was left";
    return run_eagerly(arguments);
  }
  Entry* const entry = find(arguments);
  if (!entry) return record(arguments);
  if (!entry->is_confirmed) return record_again(*entry, arguments);
  if (*group_ && !is_compared_) {
    reason_ = "another rank has no graph to compare yet";
    return run_eagerly(arguments);
  }
  fit(*entry, nullptr, true);
  mode_ = Mode::replay;
  if (options_.device_graphs) entry->choose_executor();
  std::vector<Tensor> results = run_replay(*entry, arguments);
  entry->guards.replayed();
  return results;
}

// A rank that has left a step may find that its graph fits, where another's has other settings or none. One that
// replays need not communicate in the order of one that records: it predicted, when it recorded, what to gather early.
void CompiledStep::forget_before_reset() {
  const std::uint64_t now = num_left_steps();
  if (std::exchange(num_left_, now) == now) return;
  entries_.clear();
  mode_ = Mode::none;
  num_calls_ = 0;
  is_compared_ = false;
  group_.reset();
  refusal_.clear();
  if (begun_with_) begin_with(*begun_with_);
}

// Whether a recording fits may differ between ranks (one's batch may be smaller), so whether to compare must not depend
// on it: ranks ask each other at every call from the third on until all have one that is confirmed.
void CompiledStep::compare_programs(bool has_arguments) {
  if (!group_) group_ = group_of(options_);
  if (!*group_ || is_compared_ || ++num_calls_ <= 2) return;
  Entry* const own = !entries_.empty() && entries_.front()->is_confirmed ? entries_.front().get() : nullptr;
  is_compared_ = check_same_program(own ? &own->graph.program : nullptr, **group_);
  if (!is_compared_) return;
  try {
    fit(*own, group_->get(), has_arguments);
  } catch (const Error& error) {
    refusal_ = error.what();
    throw;
  }
}

// What is left out of a recording that fits, is left out on all ranks; a later one of this rank alone gathers all that
// it was recorded to gather.
void CompiledStep::fit(Entry& entry, ProcessGroup* group, bool has_arguments) {
  if (entry.predicted || !options_.memory_budget.is_set()) return;
  auto [program, predicted] = fitted(entry.recorded, entry.graph.program, group, has_arguments);
  ir::Live live = entry.graph.live;
  if (options_.activations_folder)
    on_all(group, [&] {  // a disk may be full on one rank
      if (!entry.homes) entry.homes = make_homes(options_, program);
      for (Ref<Storage>& home : take_homes(program, live.constants.size(), *entry.homes))
        live.constants.push_back(std::move(home));
    });
  if (program != entry.graph.program)
    entry.fitted = std::make_unique<const Graph>(Graph{std::move(program), std::move(live)});
  entry.sums.reset();
  entry.interpreter = std::make_unique<Interpreter>(
      entry.runs(), fmt::format("{} at most: {}", format_bytes(predicted.peak), describe(predicted.bytes)));
  entry.predicted = std::move(predicted);
}

// Calls that are measured are none of the step, whose peak is to be what it holds itself.
std::pair<ir::Program, CompiledStep::Predicted> CompiledStep::fitted(const ir::Program& recorded,
                                                                     const ir::Program& passed, ProcessGroup* group,
                                                                     bool has_arguments) {
  const ir::Footprint alone = footprint_of(passed);
  const CategoryBytes beside = bytes_beside(recorded, alone, has_arguments);
  const std::int64_t sum_beside = std::accumulate(beside.begin(), beside.end(), std::int64_t{0});
  if (!prices_ && !RankContext::current().is_ghost()) {  // which measures nothing
    std::unique_ptr<OffloadHomes> homes;
    on_all(group, [&] { homes = make_homes(options_, recorded); });
    Accounting& account = RankContext::current().allocator(device_of(recorded)).accounting();
    const Accounting before = account;
    const std::int64_t room = options_.memory_budget.bytes(alone.peak + sum_beside) - account.total();
    prices_ = std::make_shared<const Prices>(measure_prices(passed, {.most_bytes = std::max<std::int64_t>(1, room),
                                                                     .group = group ? group_of(options_) : nullptr,
                                                                     .homes = homes.get()}));
    forget_peaks_since(before, account);
  }
  Fitted fitted = fit_program(recorded, {.budget = options_.memory_budget,
                                         .passes = options_.passes,
                                         .beside = sum_beside,
                                         .group = group,
                                         .recorded = &alone,
                                         .prices = prices_.get(),
                                         .moves_out = options_.activations_folder.has_value()});
  Predicted predicted{.notes = fmt::format("{}", fmt::join(fitted.notes, "; ")),
                      .bytes = fitted.footprint.most,
                      .peak = fitted.footprint.peak + sum_beside,
                      .without = fitted.recorded_peak + sum_beside,
                      .seconds = fitted.seconds,
                      .prices = prices_,
                      .at_peak = fitted.footprint.at_peak};
  for (const std::size_t c : indices(beside)) {
    predicted.bytes[c] += beside[c];
    predicted.at_peak[c] += beside[c];
  }
  return {std::move(fitted.program), std::move(predicted)};
}

CompiledStep::Predicted CompiledStep::predict(const ir::Program& recorded) {
  check(options_.memory_budget.is_set(), "predict() is about a step that has a memory budget: set memory_budget");
  const std::shared_ptr<ProcessGroup> group = group_of(options_);
  ir::Program passed = recorded;
  run_passes(passed, options_.passes);
  return fitted(recorded, passed, group.get(), false).second;
}

void CompiledStep::prepare() {
  if (entries_.empty()) return;
  compare_programs(false);
  fit(*entries_.front(), nullptr, false);
}

std::optional<CompiledStep::Predicted> CompiledStep::predicted() const {
  return entries_.empty() ? std::nullopt : entries_.front()->predicted;
}

std::vector<Tensor> CompiledStep::run_eagerly(std::span<const Tensor> arguments) {
  std::vector<Tensor> results = function_(arguments);
  mode_ = Mode::eager;
  drop_history(results);
  return results;
}

std::unique_ptr<CompiledStep::Entry> CompiledStep::record_into(std::vector<Tensor>& results,
                                                               std::span<const Tensor> arguments) {
  mode_ = Mode::record;
  const std::uint64_t predictions = num_predictions();
  std::erase_if(slots_of_others_, [](const NodeRef& leaf) { return !static_cast<Leaf*>(leaf.get())->slot; });
  Recorder recorder(arguments, slots_of_others_);
  results = function_(arguments);
  if (!recorder.met().empty()) {
    slots_of_others_.insert(slots_of_others_.end(), recorder.met().begin(), recorder.met().end());
    mode_ = Mode::eager;
    const Slot* const first = static_cast<Leaf*>(recorder.met().front().get())->slot;  // null: it has ended meanwhile
    reason_ = fmt::format("the call has shown that the step uses slot \"{}\", which another thread has made",
                          first ? first->name() : "");
    drop_history(results);
    return nullptr;
  }
  Graph graph = recorder.finish(results);
  ir::Program recorded = graph.program;
  if (checks_programs()) check_round_trip(graph.program);
  run_passes(graph.program, options_.passes);
  if (checks_programs()) check_round_trip(graph);
  drop_history(results);
  return std::make_unique<Entry>(std::move(recorded), std::move(graph), predictions);
}

std::vector<Tensor> CompiledStep::record(std::span<const Tensor> arguments) {
  std::vector<Tensor> results;
  std::unique_ptr<Entry> entry = record_into(results, arguments);
  if (!entry) return results;
  entry->is_confirmed = !options_.compare;
  const bool is_full = entries_.size() >= options_.max_graphs;
  if (is_full) entries_.pop_back();
  entries_.insert(entries_.begin(), std::move(entry));
  if (is_full && !std::exchange(has_said_room_, true) && is_first_rank())
    say_on_stderr(fmt::format(
        "compile(): there are more than max_graphs = {} kinds of calls, so the recording used least recently is "
        "dropped and will be made again; the last kind: {}",
        options_.max_graphs, reason_));
  return results;
}

// Its call has run as a step should, so results and slots are those of an eager one even where this raises. A tensor
// that the step holds, and that is also an argument of these calls, shows in the copies. A recording that was made by
// another prediction, or while somebody held a gradient, may differ and gives its place to this one.
std::vector<Tensor> CompiledStep::record_again(Entry& entry, std::span<const Tensor> arguments) {
  reason_ = "the second time, to compare";
  const ArgumentCopies copies(entry.graph.program, arguments);
  std::vector<Tensor> results;
  std::unique_ptr<Entry> again = record_into(results, copies.arguments());
  copies.write_back(again ? again->graph.program : entry.graph.program);
  const std::string difference =
      again ? recording_difference(entry.graph, again->graph, copies.arguments()) : "it uses other slots";
  if (difference.empty()) {
    entry.is_confirmed = true;
    return results;
  }
  const bool may_differ =
      !again ||
      (!entry.is_second && (entry.predictions != again->predictions || !are_held_alike(entry.graph, again->graph)));
  std::erase_if(entries_, [&](const auto& own) { return own.get() == &entry; });
  if (!may_differ)
    fail(
        "the captured step changes from call to call: {}. A replay would go on with what was recorded: pass what "
        "changes as an argument, keep it in a slot, or leave it out of the step "
        "(CompileOptions{{.compare = false}} records once and does not look)",
        difference);
  if (!again) return results;
  entries_.insert(entries_.begin(), std::move(again));
  entries_.front()->is_second = true;
  return results;
}

std::vector<Tensor> CompiledStep::run_replay(Entry& entry, std::span<const Tensor> arguments) {
  if (!entry.device || !entry.device->fits_units()) {
    const std::string obstacle = entry.device ? "gathered parameters are in memory" : entry.no_device;
    reason_ = obstacle.empty() ? "" : ": " + obstacle;
    return entry.interpreter->run(arguments);
  }
  std::vector<Tensor> results;
  try {
    results = entry.device->run(arguments);
  } catch (
      const OutOfMemory& error) {  // a recording keeps its temporaries; the interpreter shares the program's memory
    entry.device.reset();
    entry.is_decided = true;
    entry.no_device = fmt::format("no memory for a recording ({})", error.message());
    return run_replay(entry, arguments);
  }
  reason_ = fmt::format(" by {} in one call, {} nodes", to_string(entry.device->device()), entry.device->num_nodes());
  return results;
}

CompiledStep::Entry* CompiledStep::find(std::span<const Tensor> arguments) {
  reason_.clear();
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    std::string mismatch = entries_[i]->guards.mismatch(arguments);
    if (mismatch.empty()) {
      std::rotate(entries_.begin(), entries_.begin() + static_cast<std::ptrdiff_t>(i),
                  entries_.begin() + static_cast<std::ptrdiff_t>(i) + 1);
      return entries_.front().get();
    }
    if (i == 0) reason_ = std::move(mismatch);  // compared with the graph used last
  }
  if (entries_.empty()) reason_ = "there is no graph yet";
  return nullptr;
}

}  // namespace sherd
