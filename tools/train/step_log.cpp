#include "tools/train/step_log.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <exception>
#include <numeric>

namespace sherd {

namespace {

constexpr std::int64_t kSettlingSteps = 2;  // orders are recorded, then a compiled step

double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

StepLog::StepLog(ProcessGroup& group, Accounting& memory, std::int64_t first_step, const Observer& observe)
    : group_(group), memory_(memory), first_step_(first_step), observe_(observe) {}

void StepLog::begin() {
  memory_.reset_peaks();
  begun_ = {now_seconds(), counts_with_subgroups(group_), comm_times(group_)};
}

void StepLog::end(const StepMetrics& known, const Tensor& loss, const Tensor& norm) {
  StepMetrics metrics = known;
  metrics.memory_bytes = memory_.peak();
  reads_.push({loss, norm}, [this, metrics, begun = begun_](std::span<const double> values) {
    arrived(metrics, begun, values[0], values[1]);
  });
}

// A step that was issued while the one before ran has taken the time since that one was done.
void StepLog::arrived(StepMetrics metrics, const Begun& begun, double loss, double norm) {
  const double now = now_seconds();
  const CommTimes comm = comm_times(group_) - begun.times;
  metrics.loss = loss;
  metrics.grad_norm = norm;
  metrics.step_seconds = now - std::max(begun.seconds, last_arrival_);
  metrics.tokens_per_second = static_cast<double>(metrics.tokens) / metrics.step_seconds;
  metrics.exposed_comm_seconds = comm.exposed;
  metrics.exposed_skew_seconds = comm.skew;
  last_arrival_ = now;

  if (metrics.step > first_step_ + kSettlingSteps) summary_.comm += comm;
  summary_.step_comm = counts_with_subgroups(group_);
  summary_.step_comm -= begun.counts;
  for (std::size_t c = 0; c < metrics.memory_bytes.size(); ++c)
    summary_.peak_bytes[c] = std::max(summary_.peak_bytes[c], metrics.memory_bytes[c]);
  if (metrics.step == first_step_ + 1) summary_.first_loss = loss;
  last_losses_.push_back(loss);
  if (last_losses_.size() > 10) last_losses_.pop_front();
  summary_.last_losses_mean =
      std::accumulate(last_losses_.begin(), last_losses_.end(), 0.0) / static_cast<double>(last_losses_.size());
  if (!diverged_ && !(std::isfinite(loss) && std::isfinite(norm))) diverged_ = metrics;
  done_.push_back(metrics);
}

void StepLog::report(const StepMetrics& metrics) {
  if (metrics.val_loss) summary_.val_loss = metrics.val_loss;
  observe_(metrics);
}

void StepLog::poll() {
  reads_.poll();
  while (!done_.empty()) {
    const StepMetrics first = done_.front();
    done_.pop_front();
    report(first);
  }
}

void StepLog::finish() {
  reads_.finish();
  poll();
}

StepMetrics StepLog::finish_but_last() {
  reads_.finish();
  const StepMetrics last = done_.back();
  done_.pop_back();
  poll();
  return last;
}

void StepLog::finish_quietly() noexcept {
  while (!reads_.empty() || !done_.empty()) {
    try {
      finish();
    } catch (...) {}  // each time one read or one step less
  }
}

}  // namespace sherd
