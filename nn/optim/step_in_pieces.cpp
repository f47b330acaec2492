// Updates piece by piece: of state, parameters and gradients that lie outside of memory, each of them or not, and of
// parameters whose gradients become complete one after the other, within backward. A piece is updated when the next one
// is on its way, so that neither its state nor its gradients are waited for before that.
//
//   hooks of backward    grad of w3 | grad of w2 | grad of w1 .......... step()
//   pieces               fetch 0          | fetch 1, update 0, evict 0  | ... | update and evict the last
#include "nn/optim/step_in_pieces.h"

#include <algorithm>
#include <functional>

#include "nn/optim/dense_copies.h"
#include "runtime/autograd/autograd.h"
#include "runtime/exec/context.h"
#include "runtime/op/rows/ops.h"

namespace sherd::nn {

namespace {
constexpr std::int64_t kLeaving = 2;  // pieces of the step before, on their way out while others are fetched ahead
constexpr std::int64_t kMostInFlight = 6;
constexpr std::int64_t kOfHome = 2;  // where a value lies outside of memory: it, and its gradient
constexpr std::int64_t kPieceInMemory = std::int64_t{16} << 20;  // of state that is not fetched: a call's worth
}  // namespace

Optimizer::~Optimizer() = default;

void Optimizer::offload(const OffloadOptions& options) {
  for (std::size_t i = 0; i < parameters_.size(); ++i)
    check(state_[i].empty(),
          "the state of parameter \"{}\" is in memory already: offload an optimizer before its first step, its first "
          "state() and a load of a checkpoint",
          parameters_[i]->name());
  const Device device = update_device(*parameters_[0]);
  check(!device.is_meta(), "parameter \"{}\" has no values; materialize the model before offload()",
        parameters_[0]->name());
  std::vector<std::int64_t> bytes;
  for (const Parameter* p : parameters_)
    bytes.push_back(most_bytes_of_a_rank(p->sharded_value()) * std::ssize(state_kinds()));
  offloaded_ = std::make_unique<OffloadedState>(device, options, bytes);
}

// Units of one optimizer need not be alike: one that is replicated stays in memory.
bool Optimizer::has_homes() const {
  return std::ranges::any_of(parameters_, [](const Parameter* p) { return home_of(p->sharded_value()) != nullptr; });
}

// Of what lies outside of memory.
Optimizer::PieceSizes Optimizer::piece_sizes() const {
  std::int64_t bytes = 0, most = 0;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const Tensor& value = parameters_[i]->sharded_value();
    const OffloadHome* const home = home_of(value);
    const std::int64_t of_state = offloaded_ && offloaded_->has(i) ? std::ssize(state_kinds()) : 0;
    bytes += bytes_per_rank(value) * (of_state + (home ? kOfHome : 0));
    if (home) most = home->bytes_in_flight;
  }
  if (bytes == 0) return {kPieceInMemory, 0};
  if (offloaded_) most = offloaded_->bytes_in_flight();
  const std::int64_t piece = piece_bytes(bytes, most);
  return {piece, std::clamp(most / std::max<std::int64_t>(piece, 1), kLeaving + 1, kMostInFlight)};
}

namespace {
void add_home(std::vector<Tensor>& homes, const Tensor& tensor, const StateRun& run) {
  if (home_of(tensor)) homes.push_back(elements_of(tensor, run));
}

// The next part of what was fetched, if the tensor lies outside of memory; else its elements.
Tensor part_of(const Tensor& tensor, const StateRun& run, std::vector<Tensor>::const_iterator& next) {
  return home_of(tensor) ? *next++ : elements_of(tensor, run);
}
}  // namespace

// In the order of the files where pieces are whole: the value, all kinds of state, then those of the next parameter.
std::vector<Tensor> Optimizer::homes_of(const StatePiece& piece) const {
  std::vector<Tensor> homes;
  for (const StateRun& run : piece) {
    add_home(homes, parameters_[run.parameter]->sharded_value(), run);
    for (const auto& slot : state_[run.parameter]) add_home(homes, slot->value(), run);
  }
  return homes;
}

std::vector<Tensor> Optimizer::gradient_homes_of(const StatePiece& piece) const {
  std::vector<Tensor> homes;
  for (const StateRun& run : piece) add_home(homes, parameters_[run.parameter]->grad(), run);
  return homes;
}

void Optimizer::add_update(std::size_t i, const Tensor& count) {
  if (!pieces_) {
    const std::size_t of_state = offloaded_ ? state_kinds().size() : 0;
    const std::size_t kinds = of_state + (has_homes() ? kOfHome : 0);
    const PieceSizes sizes = piece_sizes();
    pieces_ = std::make_unique<PiecesInFlight>(
        PiecesInFlight{.cut = StatePieces(sizes.bytes, kinds > 0 ? kinds : state_kinds().size())});
    if (in_backward_) in_backward_->in_flight = sizes.in_flight;
  }
  if (pieces_->count.defined() && pieces_->count.storage() != count.storage()) start_piece(pieces_->cut.take_rest());
  pieces_->count = count;
  for (StatePiece& piece : pieces_->cut.add(i, parameters_[i]->sharded_value())) start_piece(std::move(piece));
}

void Optimizer::start_piece(StatePiece piece) {
  if (piece.empty()) return;
  PiecesInFlight::Fetched next{.piece = std::move(piece),
                               .count = pieces_->count,
                               .homes = {},
                               .here = {},
                               .gradient_homes = {},
                               .gradients_here = {}};
  next.homes = homes_of(next.piece);
  next.gradient_homes = gradient_homes_of(next.piece);
  const OffloadAttrs attrs{.device = update_device(*parameters_[next.piece.front().parameter])};
  if (!next.homes.empty()) next.here = take_ahead(next.piece);
  if (!next.homes.empty() && !next.here.defined()) next.here = fetch(next.homes, attrs);
  if (!next.gradient_homes.empty()) next.gradients_here = fetch_gradients(next.gradient_homes, attrs);
  if (has_begun() && std::ssize(in_backward_->order_now) < in_backward_->in_flight - kLeaving)
    in_backward_->order_now.push_back(next.piece);
  pieces_->fetched.push_back(std::move(next));
  if (pieces_->fetched.size() > 1) update_oldest_piece();
}

void Optimizer::update_oldest_piece() {
  const PiecesInFlight::Fetched now = std::move(pieces_->fetched.front());
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
    const Parameter& p = *parameters_[run.parameter];
    UpdatedPart& part = parts.emplace_back(UpdatedPart{.parameter = run.parameter, .value = {}, .gradient = {}});
    part.value = part_of(copies.of(p.sharded_value()), run, next);
    for (const auto& slot : state_[run.parameter]) part.state.push_back(part_of(slot->value(), run, next));
    part.gradient = home_of(p.grad()) ? *next_gradient++ : elements_of(contiguous(p.grad().local().detach()), run);
  }
  update(std::move(parts), lr_.value(), now.count, scale_.value());
  copies.store();
  if (now.here.defined())
    evict(now.homes, now.here, {.device = update_device(*parameters_[now.piece.front().parameter])});
  if (!has_begun() || !asked_.get<&AskedInBackward::clears>()) return;
  for (const StateRun& run : now.piece)
    if (run.is_last) parameters_[run.parameter]->clear_grad();
}

void Optimizer::finish_pieces() {
  if (!pieces_) return;
  start_piece(pieces_->cut.take_rest());
  while (!pieces_->fetched.empty()) update_oldest_piece();
  pieces_.reset();
}

// Nobody updates them any more: until the load that has to follow they would only hold memory.
void Optimizer::drop_pieces() {
  pieces_.reset();
  if (!in_backward_) return;
  in_backward_->order_now.clear();
  in_backward_->counts.clear();
  in_backward_->ahead.clear();
  in_backward_->homes_ahead.clear();
  asked_.set<&AskedInBackward::wanted>(false);
  in_backward_->has_begun = false;
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
  now.homes_ahead.clear();
  for (StatePiece& piece : now.order) {
    const std::vector<Tensor> homes = homes_of(piece);
    if (homes.empty()) continue;
    for (const Tensor& home : homes) now.homes_ahead.emplace_back(home.storage(), home.storage()->version());
    Tensor here = fetch(homes, {.device = update_device(*parameters_[piece.front().parameter]),
                                .in_flight = static_cast<int>(now.in_flight)});
    now.ahead.emplace_back(std::move(piece), std::move(here));
  }
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

// Nothing has, unless it was asked for.
bool Optimizer::has_begun() const {
  return asked_.get<&AskedInBackward::wanted>() && in_backward_ && in_backward_->has_begun;
}
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
  asked_.set<&AskedInBackward::wanted>(true);
  asked_.set<&AskedInBackward::clears>(options.clears_gradients);
  const GradMode off(false);
  const PhaseScope phase(StepPhase::optimizer);
  fetch_ahead();
}

void Optimizer::gradient_is_complete(std::size_t i) {
  Parameter& p = *parameters_[i];
  if (!asked_.get<&AskedInBackward::wanted>() || !p.grad().defined()) return;
  check(!is_updated(i),
        "parameter \"{}\" got another gradient after its update: call step_in_backward() before the last backward pass "
        "of a step",
        p.name());
  if (p.sharded_value().layout() != p.grad().layout()) return;  // step() says what is wrong
  const GradMode off(false);
  const PhaseScope phase(StepPhase::optimizer);
  check_value(i);
  ensure_state(i);
  check_state_fits(i);
  or_tear([&] {
    begin_in_backward();
    in_backward_->is_updated[i] = true;
    add_update(i, count_of_step(i));
  });
}

void Optimizer::begin_in_backward() {
  if (has_begun()) return;
  in_backward_->has_begun = true;
  const bool is_written = std::ranges::any_of(in_backward_->homes_ahead,
                                              [](const auto& home) { return home.first->version() != home.second; });
  if (is_written) in_backward_->ahead.clear();  // by a load, or whoever else, since they were fetched
  in_backward_->homes_ahead.clear();
  in_backward_->is_updated.assign(parameters_.size(), false);
  mark_torn("a backward pass that updates parameters was left, or step() was not called after it");
}

void Optimizer::clear_gradients() {
  for (Parameter* p : parameters_) p->clear_grad();
  drop_pieces();  // of a step that was left, or that has not begun
}

// Somebody has loaded a checkpoint since: all is whole, and nothing of that step counts, whether it was left in
// backward or in step() itself: its pieces would be evicted over what was loaded.
void Optimizer::forget_step_that_was_left() {
  if (!torn().empty()) return;
  if (!has_begun()) return pieces_.reset();
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
  asked_.set<&AskedInBackward::wanted>(false);
  in_backward_->counts.clear();
  in_backward_->ahead.clear();
  in_backward_->order = std::exchange(in_backward_->order_now, {});
  if (!std::exchange(in_backward_->has_begun, false)) return;
  step_.mark_whole();
  for_each_slot([](Slot& slot) { slot.mark_whole(); });
}

}  // namespace sherd::nn
