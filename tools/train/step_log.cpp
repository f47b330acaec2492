#include "tools/train/step_log.h"
#include "runtime/tensor/indices.h"

#include <algorithm>
#include <exception>
#include <numeric>
#include <utility>

namespace sherd::train {

namespace {

constexpr std::int64_t kSettlingSteps = 3;  // orders are recorded, then a compiled step, twice

void raise(CategoryBytes& most, const CategoryBytes& bytes) {
  for (const std::size_t c : indices(most)) most[c] = std::max(most[c], bytes[c]);
}

/// Steps are those parts of the time of which work in flight may take some; the loop waits for these beside them.
double seconds_of_step(const PartSeconds& seconds) {
  double sum = 0;
  for (const std::size_t p : indices(seconds))
    if (const auto part = static_cast<StepPart>(p); part != StepPart::evaluation && part != StepPart::save)
      sum += seconds[p];
  return sum;
}

}  // namespace

StepLog::StepLog(ProcessGroup& group, Accounting& memory, std::int64_t first_step, const DivergenceRule& rule,
                 double seconds_at_peak, const Observer& observe)
    : group_(group),
      memory_(memory),
      first_step_(first_step),
      observe_(observe),
      watch_(rule),
      clock_(group),
      seconds_at_peak_(seconds_at_peak) {
  step_clock().count_waits_by([&group] { return comm_times(group).exposed; });
}

StepLog::~StepLog() { step_clock().count_waits_by({}); }

void StepLog::begin() {
  if (num_begun_ == 0) counted_ = step_clock().seconds();
  const bool is_beside_another = !reads_.empty();
  if (num_begun_++ == kSettlingSteps) clock_.start();
  memory_.reset_peaks();
  begun_ = {counts_with_subgroups(group_), comm_times(group_), clock_.has_started(), is_beside_another};
}

void StepLog::end(const StepMetrics& known, const TrainStep::Result& out) {
  StepMetrics metrics = known;
  metrics.memory_bytes = memory_.peak();
  metrics.memory_peak_bytes = memory_.total_peak();
  const HostReads::Consumer use = [this, metrics, begun = begun_](std::span<const double> values) {
    arrived(metrics, begun, values);
  };
  const StepClock::Scope waits(step_clock(), StepPart::update_wait);
  if (out.loss_scale.defined()) reads_.push({out.loss, out.grad_norm, out.loss_scale, out.skipped_steps}, use);
  else reads_.push({out.loss, out.grad_norm}, use);
}

// A step has the time since the one before was done, of its evaluation and save too; where it was issued while that one
// ran, it has also waited for what has been counted since.
void StepLog::arrived(StepMetrics metrics, const Begun& begun, std::span<const double> values) {
  const PartSeconds now = step_clock().seconds();
  for (const std::size_t p : indices(now)) metrics.seconds[p] = now[p] - counted_[p];
  counted_ = now;
  const CommTimes times = comm_times(group_);
  const CommTimes comm = times - (begun.is_beside_another ? arrived_times_ : begun.times);
  arrived_times_ = times;
  metrics.loss = values[0];
  metrics.grad_norm = values[1];
  if (values.size() > 2) {
    summary_.loss_scale = metrics.loss_scale = values[2];
    summary_.skipped_steps = metrics.skipped_steps = static_cast<std::int64_t>(values[3]);
  }
  metrics.step_seconds = seconds_of_step(metrics.seconds);
  if (seconds_at_peak_ > 0) metrics.mfu = seconds_at_peak_ / metrics.step_seconds;
  metrics.tokens_per_second = static_cast<double>(metrics.tokens) / metrics.step_seconds;
  metrics.exposed_comm_seconds = comm.exposed;
  metrics.exposed_skew_seconds = comm.skew;

  if (begun.is_settled) {
    summary_.comm += comm;
    clock_.add_step(metrics.step_seconds);
  }
  summary_.step_comm = counts_with_subgroups(group_);
  summary_.step_comm -= begun.counts;
  raise(summary_.peak_bytes, metrics.memory_bytes);
  summary_.peak_total = std::max(summary_.peak_total, metrics.memory_peak_bytes);
  if (metrics.step == first_step_ + 1 && !has_first_loss_) summary_.first_loss = metrics.loss;
  last_losses_.push_back(metrics.loss);
  if (last_losses_.size() > 10) last_losses_.erase(last_losses_.begin());
  summary_.last_losses_mean =
      std::accumulate(last_losses_.begin(), last_losses_.end(), 0.0) / static_cast<double>(last_losses_.size());
  using enum DivergenceWatch::Verdict;
  const DivergenceWatch::Verdict verdict = diverged_ ? good : watch_.judge(metrics);  // nothing after it is known
  if (!metrics.loss_scale) metrics.skipped_steps = summary_.skipped_steps += verdict == skipped ? 1 : 0;
  if (verdict == not_finite || verdict == spike) diverged_ = watch_.describe(metrics, verdict);
  done_.push_back(metrics);
}

void StepLog::roll_back() {
  diverged_.reset();
  watch_.forget();
  last_losses_.clear();
  ++summary_.rollbacks;
}

StepLog::History StepLog::history() const {
  return {.first_loss = has_first_loss_ || !last_losses_.empty() ? std::optional(summary_.first_loss) : std::nullopt,
          .val_loss = summary_.val_loss,
          .last_losses = last_losses_,
          .skipped_steps = summary_.skipped_steps,
          .rollbacks = summary_.rollbacks,
          .watch = watch_.history()};
}

void StepLog::go_on_from(History history) {
  has_first_loss_ = history.first_loss.has_value();
  summary_.first_loss = history.first_loss.value_or(0);
  summary_.val_loss = history.val_loss;
  last_losses_ = std::move(history.last_losses);
  summary_.skipped_steps = history.skipped_steps;
  summary_.rollbacks = history.rollbacks;
  watch_.go_on_from(std::move(history.watch));
}

void StepLog::count_evaluation(StepMetrics& metrics) {
  constexpr auto kEvaluation = static_cast<std::size_t>(StepPart::evaluation);
  const double now = step_clock().seconds()[kEvaluation];
  metrics.seconds[kEvaluation] += now - std::exchange(counted_[kEvaluation], now);
  metrics.memory_bytes = memory_.peak();
  metrics.memory_peak_bytes = memory_.total_peak();
  raise(summary_.peak_bytes, metrics.memory_bytes);
  summary_.peak_total = std::max(summary_.peak_total, metrics.memory_peak_bytes);
}

void StepLog::report(const StepMetrics& metrics) {
  if (metrics.val_loss) summary_.val_loss = metrics.val_loss;
  observe_(metrics);
}

void StepLog::poll() {
  const StepClock::Scope waits(step_clock(), StepPart::update_wait);
  reads_.poll();
  report_done();
}

void StepLog::report_done() {
  const StepClock::Scope part(step_clock(), StepPart::other);
  while (!done_.empty()) {
    const StepMetrics first = done_.front();
    done_.pop_front();
    report(first);
  }
}

void StepLog::finish() {
  const StepClock::Scope waits(step_clock(), StepPart::update_wait);
  reads_.finish();
  report_done();
}

StepMetrics StepLog::finish_but_last() {
  const StepClock::Scope waits(step_clock(), StepPart::update_wait);
  reads_.finish();
  const StepMetrics last = done_.back();
  done_.pop_back();
  report_done();
  return last;
}

void StepLog::finish_quietly() noexcept {
  while (!reads_.empty() || !done_.empty()) {
    try {
      finish();
    } catch (...) {}  // each time one read or one step less
  }
}

}  // namespace sherd::train
