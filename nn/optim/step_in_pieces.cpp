// Updates piece by piece: of state that is offloaded, and of parameters whose gradients become complete one after the
// other, within backward. A piece is updated when the next one is on its way, so that neither its state nor its
// gradients are waited for before that.
//
//   hooks of backward    grad of w3 | grad of w2 | grad of w1 .......... step()
//   pieces               fetch 0          | fetch 1, update 0, evict 0  | ... | update and evict the last
#include <deque>
#include <functional>
#include <utility>

#include "nn/optim/optimizer.h"
#include "runtime/autograd/autograd.h"
#include "runtime/exec/context.h"
#include "runtime/op/ops.h"

namespace sherd::nn {

namespace {
constexpr std::size_t kAhead = 2;                                // pieces that are fetched before the first gradient
constexpr std::int64_t kPieceInMemory = std::int64_t{16} << 20;  // of state that is not fetched: a call's worth
}  // namespace

/// What the step of now has begun, in the order in which it is to be updated.
struct Optimizer::PiecesInFlight {
  struct Fetched {
    StatePiece piece;
    Tensor count;
    std::vector<Tensor> homes;
    Tensor here;  // undefined: state is in memory, or there is none
  };
  StatePieces cut;
  Tensor count{};  // of what is cut now
  std::deque<Fetched> fetched{};
};

struct Optimizer::InBackward {
  bool is_wanted = false, has_begun = false;
  StepInBackward options{};
  std::vector<bool> is_updated{};                   // by parameter
  std::vector<std::pair<Tensor, Tensor>> counts{};  // of cohorts: before the step, and in it
  std::vector<StatePiece> order{};                  // of the step before: what comes first is fetched ahead
  std::vector<StatePiece> order_now{};
  std::deque<std::pair<StatePiece, Tensor>> ahead{};
};

Optimizer::~Optimizer() { forget(); }

void Optimizer::offload(const OffloadOptions& options) {
  for (std::size_t i = 0; i < parameters_.size(); ++i)
    check(state_[i].empty(),
          "the state of parameter \"{}\" is in memory already: offload an optimizer before its first step, its first "
          "state() and a load of a checkpoint",
          parameters_[i]->name());
  const Device device = parameters_[0]->sharded_value().local().device();
  check(!device.is_meta(), "parameter \"{}\" has no values; materialize the model before offload()",
        parameters_[0]->name());
  offloaded_ = std::make_unique<OffloadedState>(device, options);
}

std::int64_t Optimizer::state_bytes() const {
  std::int64_t bytes = 0;
  for (const Parameter* p : parameters_) bytes += bytes_per_rank(p->sharded_value());
  return bytes * static_cast<std::int64_t>(state_kinds().size());
}

// In the order of the file where pieces are whole: all kinds of a parameter, then those of the next.
std::vector<Tensor> Optimizer::homes_of(const StatePiece& piece) const {
  std::vector<Tensor> homes;
  for (const StateRun& run : piece)
    for (const auto& slot : state_[run.parameter]) homes.push_back(elements_of(slot->value(), run));
  return homes;
}

void Optimizer::add_update(std::size_t i, const Tensor& count) {
  if (!pieces_) {
    const std::int64_t bytes = offloaded_ ? offloaded_->piece_bytes(state_bytes()) : kPieceInMemory;
    pieces_ = std::make_unique<PiecesInFlight>(PiecesInFlight{.cut = StatePieces(bytes, state_kinds().size())});
  }
  if (pieces_->count.defined() && pieces_->count.storage() != count.storage()) start_piece(pieces_->cut.take_rest());
  pieces_->count = count;
  for (StatePiece& piece : pieces_->cut.add(i, parameters_[i]->sharded_value())) start_piece(std::move(piece));
}

void Optimizer::start_piece(StatePiece piece) {
  if (piece.empty()) return;
  PiecesInFlight::Fetched next{.piece = std::move(piece), .count = pieces_->count, .homes = {}, .here = {}};
  next.homes = homes_of(next.piece);
  if (offloaded_ && !next.homes.empty()) {
    next.here = take_ahead(next.piece);
    if (!next.here.defined()) next.here = fetch(next.homes, {.device = offloaded_->device()});
  }
  if (has_begun() && in_backward_->order_now.size() < kAhead) in_backward_->order_now.push_back(next.piece);
  pieces_->fetched.push_back(std::move(next));
  if (pieces_->fetched.size() > 1) update_oldest_piece();
}

void Optimizer::update_oldest_piece() {
  const PiecesInFlight::Fetched now = std::move(pieces_->fetched.front());
  pieces_->fetched.pop_front();
  const std::vector<Tensor> state = now.here.defined() ? parts_of(now.here, now.homes) : now.homes;
  auto of_run = state.begin();
  std::vector<UpdatedPart> parts;
  for (const StateRun& run : now.piece) {
    const Parameter& p = *parameters_[run.parameter];
    UpdatedPart& part =
        parts.emplace_back(UpdatedPart{.parameter = run.parameter,
                                       .value = elements_of(p.sharded_value(), run),
                                       .gradient = elements_of(contiguous(p.grad().local().detach()), run)});
    for (std::size_t k = 0; k < state_[run.parameter].size(); ++k) part.state.push_back(*of_run++);
  }
  update(std::move(parts), lr_.value(), now.count, scale_.value());
  if (now.here.defined()) evict(now.homes, now.here, {.device = offloaded_->device()});
  if (!has_begun() || !in_backward_->options.clears_gradients) return;
  for (const StateRun& run : now.piece)
    if (run.is_last) parameters_[run.parameter]->clear_grad();
}

void Optimizer::finish_pieces() {
  if (!pieces_) return;
  start_piece(pieces_->cut.take_rest());
  while (!pieces_->fetched.empty()) update_oldest_piece();
  pieces_.reset();
}

void Optimizer::update_in_pieces(const Cohort& cohort) {
  for (const std::size_t i : cohort.active) add_update(i, cohort.count);
  finish_pieces();
}

// ---- a step in backward ----

// The disk has nothing to do in forward: the first pieces of the step come then, if they are those of the step before.
void Optimizer::fetch_ahead() {
  InBackward& now = *in_backward_;
  now.ahead.clear();
  if (!offloaded_) return;
  for (StatePiece& piece : now.order)
    if (const std::vector<Tensor> homes = homes_of(piece); !homes.empty())
      now.ahead.emplace_back(std::move(piece), fetch(homes, {.device = offloaded_->device()}));
  now.order.clear();
}

Tensor Optimizer::take_ahead(const StatePiece& piece) {
  if (!has_begun() || in_backward_->ahead.empty()) return {};
  auto [next, here] = std::move(in_backward_->ahead.front());
  in_backward_->ahead.pop_front();
  if (next == piece) return here;
  in_backward_->ahead.clear();
  return {};
}

bool Optimizer::has_begun() const { return in_backward_ && in_backward_->has_begun; }
bool Optimizer::is_updated(std::size_t i) const { return has_begun() && in_backward_->is_updated[i]; }

void Optimizer::step_in_backward(const StepInBackward& options) {
  if (const std::string reason = torn(); !reason.empty())
    fail("step_in_backward() is refused: {}; load a checkpoint of the model and the optimizer first", reason);
  forget_step_that_was_left();
  if (!in_backward_) {
    in_backward_ = std::make_unique<InBackward>();
    for (std::size_t i = 0; i < parameters_.size(); ++i)
      parameters_[i]->on_grad_accumulated(
          [this, alive = std::weak_ptr(alive_), i](Slot&) {
            if (!alive.expired()) gradient_is_complete(i);
          },
          {.capturable = true});
  }
  in_backward_->is_wanted = true;
  in_backward_->options = options;
  const GradMode off(false);
  const PhaseScope phase(StepPhase::optimizer);
  fetch_ahead();
}

void Optimizer::gradient_is_complete(std::size_t i) {
  Parameter& p = *parameters_[i];
  if (!in_backward_->is_wanted || !p.grad().defined()) return;
  check(!is_updated(i),
        "parameter \"{}\" got another gradient after its update: call step_in_backward() before the last backward pass "
        "of a step",
        p.name());
  if (p.sharded_value().layout() != p.grad().layout()) return;  // step() says what is wrong
  const GradMode off(false);
  const PhaseScope phase(StepPhase::optimizer);
  ensure_state(i);
  or_tear([&] {
    begin_in_backward();
    in_backward_->is_updated[i] = true;
    add_update(i, count_of_step(i));
  });
}

void Optimizer::begin_in_backward() {
  if (has_begun()) return;
  in_backward_->has_begun = true;
  in_backward_->is_updated.assign(parameters_.size(), false);
  mark_torn("a backward pass that updates parameters was left, or step() was not called after it");
}

void Optimizer::clear_gradients() {
  for (Parameter* p : parameters_) p->clear_grad();
  if (!in_backward_) return;
  in_backward_->is_wanted = false;  // of a step that was left before its backward
  in_backward_->ahead.clear();
}

// Somebody has loaded a checkpoint since: all is whole, and nothing of that step counts.
void Optimizer::forget_step_that_was_left() {
  if (!has_begun() || !torn().empty()) return;
  pieces_.reset();
  in_backward_->order_now.clear();
  end_in_backward();
}

// Counts themselves go up in step(), which knows all parameters of the step.
Tensor Optimizer::count_of_step(std::size_t i) {
  ensure_counts();
  const Tensor& before = counts_[i] ? counts_[i]->value() : step_.value();
  for (const auto& [count, now] : in_backward_->counts)
    if (count.storage() == before.storage()) return now;
  return in_backward_->counts.emplace_back(before, add(before, 1.0)).second;
}

void Optimizer::end_in_backward() {
  if (!in_backward_) return;
  in_backward_->is_wanted = false;
  in_backward_->counts.clear();
  in_backward_->ahead.clear();
  in_backward_->order = std::exchange(in_backward_->order_now, {});
  if (!std::exchange(in_backward_->has_begun, false)) return;
  step_.mark_whole();
  for_each_slot([](Slot& slot) { slot.mark_whole(); });
}

}  // namespace sherd::nn
