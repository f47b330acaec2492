// Updates piece by piece: of state, parameters and gradients that lie outside of memory, each of them or not, and of
// parameters whose gradients become complete one after the other, within backward. A piece is updated when the next one
// is on its way, so that neither its state nor its gradients are waited for before that.
//
//   hooks of backward    grad of w3 | grad of w2 | grad of w1 .......... step()
//   pieces               fetch 0          | fetch 1, update 0, evict 0  | ... | update and evict the last
#include "nn/optim/step_in_pieces.h"

#include <algorithm>
#include <cstdint>
#include <deque>
#include <utility>

#include "nn/optim/dense_copies.h"
#include "runtime/autograd/autograd.h"
#include "runtime/exec/context.h"
#include "runtime/op/rows/ops.h"
#include "runtime/tensor/indices.h"

namespace sherd::nn {

/// What the step of now has begun, in the order in which it is to be updated.
struct StepInPieces::InFlight {
  struct Fetched {
    StatePiece piece;
    Tensor count;
    std::vector<Tensor> homes;  // of what is updated: values, state
    Tensor here;                // undefined: all of it is in memory
    std::vector<Tensor> gradient_homes;
    Tensor gradients_here;
  };
  StatePieces cut;
  Tensor count{};  // of what is cut now
  std::deque<Fetched> fetched{};
};

/// A step that updates within backward.
struct StepInPieces::InBackward {
  bool has_begun = false;
  std::vector<bool> is_updated{};                   // by parameter
  std::vector<std::pair<Tensor, Tensor>> counts{};  // of cohorts: before the step, and in it
  std::vector<StatePiece> order{};                  // of the step before: what comes first is fetched ahead
  std::vector<StatePiece> order_now{};
  std::int64_t in_flight = 0;  // pieces in memory at a time, between steps
  std::deque<std::pair<StatePiece, Tensor>> ahead{};
  std::vector<std::pair<Ref<Storage>, std::uint32_t>> homes_ahead{};  // with their versions then
};

namespace {

constexpr std::int64_t kLeaving = 2;  // pieces of the step before, on their way out while others are fetched ahead
constexpr std::int64_t kMostInFlight = 6;
constexpr std::int64_t kOfHome = 2;  // where a value lies outside of memory: it, and its gradient
constexpr std::int64_t kPieceInMemory = std::int64_t{16} << 20;  // of state that is not fetched: a call's worth

// Units of one optimizer need not be alike: one that is replicated stays in memory.
bool has_homes(const OptimizerSlots& slots) {
  return std::ranges::any_of(slots.parameters,
                             [](const Parameter* p) { return home_of(p->sharded_value()) != nullptr; });
}

struct PieceSizes {
  std::int64_t bytes = 0, in_flight = 0;  // of a piece; pieces in memory at a time, between steps
};

// Looks at what lies outside of memory.
PieceSizes piece_sizes(const OptimizerSlots& slots) {
  std::int64_t bytes = 0, most = 0;
  const OffloadedState* const offloaded = slots.offloaded();
  for (const std::size_t i : indices(slots.parameters)) {
    const Tensor& value = slots.parameter(i).sharded_value();
    const OffloadHome* const home = home_of(value);
    const auto of_state = offloaded && offloaded->has(i) ? static_cast<std::int64_t>(slots.num_kinds()) : 0;
    bytes += bytes_per_rank(value) * (of_state + (home ? kOfHome : 0));
    if (home) most = home->bytes_in_flight;
  }
  if (bytes == 0) return {kPieceInMemory, 0};
  if (offloaded) most = offloaded->bytes_in_flight();
  const std::int64_t piece = piece_bytes(bytes, most);
  return {piece, std::clamp(most / std::max<std::int64_t>(piece, 1), kLeaving + 1, kMostInFlight)};
}

void add_home(std::vector<Tensor>& homes, const Tensor& tensor, const StateRun& run) {
  if (home_of(tensor)) homes.push_back(elements_of(tensor, run));
}

// The next part of what was fetched, if the tensor lies outside of memory; else its elements.
Tensor part_of(const Tensor& tensor, const StateRun& run, std::vector<Tensor>::const_iterator& next) {
  return home_of(tensor) ? *next++ : elements_of(tensor, run);
}

// In the order of the files where pieces are whole: the value, all kinds of state, then those of the next parameter.
std::vector<Tensor> homes_of(const OptimizerSlots& slots, const StatePiece& piece) {
  std::vector<Tensor> homes;
  for (const StateRun& run : piece) {
    add_home(homes, slots.parameter(run.parameter).sharded_value(), run);
    for (const auto& slot : slots.state_of(run.parameter)) add_home(homes, slot->value(), run);
  }
  return homes;
}

std::vector<Tensor> gradient_homes_of(const OptimizerSlots& slots, const StatePiece& piece) {
  std::vector<Tensor> homes;
  for (const StateRun& run : piece) add_home(homes, slots.parameter(run.parameter).grad(), run);
  return homes;
}

Device device_of(const OptimizerSlots& slots, const StatePiece& piece) {
  return update_device(slots.parameter(piece.front().parameter));
}

}  // namespace

StepInPieces::StepInPieces(OptimizerSlots& slots)
    : slots_(slots), asked_([](const void*) { return std::string("optimizer"); }, this) {}
StepInPieces::~StepInPieces() = default;

bool StepInPieces::are_needed() const { return slots_.offloaded() || has_homes(slots_); }

void StepInPieces::update(const std::vector<std::size_t>& parameters, const Tensor& count) {
  for (const std::size_t i : parameters) begin_update(i, count);
  finish();
}

void StepInPieces::begin_update(std::size_t i, const Tensor& count) {
  if (!pieces_) {
    const std::size_t of_state = slots_.offloaded() ? slots_.num_kinds() : 0;
    const std::size_t kinds = of_state + (has_homes(slots_) ? kOfHome : 0);
    const PieceSizes sizes = piece_sizes(slots_);
    pieces_ =
        std::make_unique<InFlight>(InFlight{.cut = StatePieces(sizes.bytes, kinds > 0 ? kinds : slots_.num_kinds())});
    if (in_backward_) in_backward_->in_flight = sizes.in_flight;
  }
  if (pieces_->count.defined() && pieces_->count.storage() != count.storage()) start(pieces_->cut.take_rest());
  pieces_->count = count;
  for (StatePiece& piece : pieces_->cut.add(i, slots_.parameter(i).sharded_value())) start(std::move(piece));
}

void StepInPieces::start(StatePiece piece) {
  if (piece.empty()) return;
  InFlight::Fetched next{.piece = std::move(piece),
                         .count = pieces_->count,
                         .homes = {},
                         .here = {},
                         .gradient_homes = {},
                         .gradients_here = {}};
  next.homes = homes_of(slots_, next.piece);
  next.gradient_homes = gradient_homes_of(slots_, next.piece);
  const OffloadAttrs attrs{.device = device_of(slots_, next.piece)};
  if (!next.homes.empty()) next.here = take_ahead(next.piece);
  if (!next.homes.empty() && !next.here.defined()) next.here = fetch(next.homes, attrs);
  if (!next.gradient_homes.empty()) next.gradients_here = fetch(next.gradient_homes, attrs, MemoryCategory::gradients);
  if (has_begun() && std::ssize(in_backward_->order_now) < in_backward_->in_flight - kLeaving)
    in_backward_->order_now.push_back(next.piece);
  pieces_->fetched.push_back(std::move(next));
  if (pieces_->fetched.size() > 1) update_oldest();
}

void StepInPieces::update_oldest() {
  const InFlight::Fetched now = std::move(pieces_->fetched.front());
  pieces_->fetched.pop_front();
  const auto parts_here = [](const Tensor& here, std::span<const Tensor> homes) {
    return here.defined() ? parts_of(here, homes) : std::vector<Tensor>();
  };
  const std::vector<Tensor> here = parts_here(now.here, now.homes),
                            gradients = parts_here(now.gradients_here, now.gradient_homes);
  auto next = here.begin(), next_gradient = gradients.begin();
  DenseCopies copies;
  std::vector<UpdatedPart> parts;
  for (const StateRun& run : now.piece) {
    const Parameter& p = slots_.parameter(run.parameter);
    UpdatedPart& part = parts.emplace_back(UpdatedPart{.parameter = run.parameter, .value = {}, .gradient = {}});
    part.value = part_of(copies.of(p.sharded_value()), run, next);
    for (const auto& slot : slots_.state_of(run.parameter)) part.state.push_back(part_of(slot->value(), run, next));
    part.gradient = home_of(p.grad()) ? *next_gradient++ : elements_of(contiguous(p.grad().local().detach()), run);
  }
  slots_.update(std::move(parts), now.count);
  copies.store();
  if (now.here.defined()) evict(now.homes, now.here, {.device = device_of(slots_, now.piece)});
  if (!has_begun() || !asked_.get<&Asked::clears>()) return;
  for (const StateRun& run : now.piece)
    if (run.is_last) slots_.parameter(run.parameter).clear_grad();
}

void StepInPieces::finish() {
  if (!pieces_) return;
  start(pieces_->cut.take_rest());
  while (!pieces_->fetched.empty()) update_oldest();
  pieces_.reset();
}

// Nobody updates them any more: until the load that has to follow they would only hold memory.
void StepInPieces::drop() {
  pieces_.reset();
  if (!in_backward_) return;
  in_backward_->order_now.clear();
  in_backward_->counts.clear();
  in_backward_->ahead.clear();
  in_backward_->homes_ahead.clear();
  asked_.set<&Asked::wanted>(false);
  in_backward_->has_begun = false;
}

void StepInPieces::or_tear(const std::function<void()>& change) {
  try {
    change();
  } catch (...) {
    slots_.mark_torn(fmt::format("a step of the optimizer was left half done: {}", current_exception_text()));
    slots_.abandon(slots_.torn());
    drop();
    throw;
  }
}

// ---- a step in backward ----

// The disk has nothing to do in forward: the first pieces of the step come then, if they are those of the step before.
void StepInPieces::fetch_ahead() {
  InBackward& now = *in_backward_;
  now.ahead.clear();
  now.homes_ahead.clear();
  for (StatePiece& piece : now.order) {
    const std::vector<Tensor> homes = homes_of(slots_, piece);
    if (homes.empty()) continue;
    for (const Tensor& home : homes) now.homes_ahead.emplace_back(home.storage(), home.storage()->version());
    Tensor here = fetch(homes, {.device = device_of(slots_, piece), .in_flight = static_cast<int>(now.in_flight)});
    now.ahead.emplace_back(std::move(piece), std::move(here));
  }
  now.order.clear();
}

Tensor StepInPieces::take_ahead(const StatePiece& piece) {
  if (!has_begun() || in_backward_->ahead.empty()) return {};
  auto [next, here] = std::move(in_backward_->ahead.front());
  in_backward_->ahead.pop_front();
  if (next == piece) return here;
  in_backward_->ahead.clear();
  return {};
}

// Nothing has, unless it was asked for.
bool StepInPieces::has_begun() const { return asked_.get<&Asked::wanted>() && in_backward_ && in_backward_->has_begun; }
bool StepInPieces::is_updated(std::size_t i) const { return has_begun() && in_backward_->is_updated[i]; }

void StepInPieces::add_hooks() {
  if (in_backward_) return;
  in_backward_ = std::make_unique<InBackward>();
  for (std::size_t i = 0; i < slots_.parameters.size(); ++i)
    slots_.parameter(i).on_grad_accumulated(
        [this, alive = std::weak_ptr(alive_), i](Slot&) {
          if (!alive.expired()) gradient_is_complete(i);
        },
        {.capturable = true});
}

void StepInPieces::ask(const StepInBackward& options) {
  if (const std::string reason = slots_.torn(); !reason.empty())
    fail("step_in_backward() is refused: {}; load a checkpoint of the model and the optimizer first", reason);
  forget_step_that_was_left();
  add_hooks();
  asked_.set<&Asked::wanted>(true);
  asked_.set<&Asked::clears>(options.clears_gradients);
  const GradMode off(false);
  const PhaseScope phase(StepPhase::optimizer);
  fetch_ahead();
}

void StepInPieces::gradient_is_complete(std::size_t i) {
  Parameter& p = slots_.parameter(i);
  if (!asked_.get<&Asked::wanted>() || !p.grad().defined()) return;
  check(!is_updated(i),
        "parameter \"{}\" got another gradient after its update: call step_in_backward() before the last backward pass "
        "of a step",
        p.name());
  if (p.sharded_value().layout() != p.grad().layout()) return;  // step() says what is wrong
  const GradMode off(false);
  const PhaseScope phase(StepPhase::optimizer);
  slots_.make_ready(i);
  or_tear([&] {
    begin_in_backward();
    in_backward_->is_updated[i] = true;
    begin_update(i, count_of_step(i));
  });
}

void StepInPieces::begin_in_backward() {
  if (has_begun()) return;
  in_backward_->has_begun = true;
  const bool is_written = std::ranges::any_of(in_backward_->homes_ahead,
                                              [](const auto& home) { return home.first->version() != home.second; });
  if (is_written) in_backward_->ahead.clear();  // by a load, or whoever else, since they were fetched
  in_backward_->homes_ahead.clear();
  in_backward_->is_updated.assign(slots_.parameters.size(), false);
  slots_.mark_torn("a backward pass that updates parameters was left, or step() was not called after it");
}

// Somebody has loaded a checkpoint since: all is whole, and nothing of that step counts, whether it was left in
// backward or in step() itself: its pieces would be evicted over what was loaded.
void StepInPieces::forget_step_that_was_left() {
  if (!slots_.torn().empty()) return;
  if (!has_begun()) return pieces_.reset();
  pieces_.reset();
  in_backward_->order_now.clear();
  end_in_backward();
}

// Counts themselves go up in step(), which knows all parameters of the step.
Tensor StepInPieces::count_of_step(std::size_t i) {
  const Tensor& before = slots_.count_of(i);
  for (const auto& [count, now] : in_backward_->counts)
    if (count.storage() == before.storage()) return now;
  return in_backward_->counts.emplace_back(before, add(before, 1.0)).second;
}

void StepInPieces::end_in_backward() {
  if (!in_backward_) return;
  asked_.set<&Asked::wanted>(false);
  in_backward_->counts.clear();
  in_backward_->ahead.clear();
  in_backward_->order = std::exchange(in_backward_->order_now, {});
  if (std::exchange(in_backward_->has_begun, false)) slots_.mark_whole();
}

}  // namespace sherd::nn
