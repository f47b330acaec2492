// The rule is that of PyTorch's _amp_update_scale_, written with rows that select: what is not chosen may be NaN.
//
//   finite               scale                                   good steps
//   no                   max(scale x backoff, min_scale)         0
//   yes, interval done   scale x growth, if that is finite       0
//   yes                  scale                                   + 1
#include "nn/optim/loss_scaler.h"

#include <algorithm>
#include <cmath>

#include "nn/optim/check_options.h"
#include "nn/optim/clip.h"
#include "runtime/autograd/autograd.h"
#include "runtime/exec/context.h"
#include "runtime/exec/purpose.h"
#include "runtime/op/rows/ops.h"

namespace sherd::nn {

namespace {

constexpr double kLargest = std::numeric_limits<float>::max();
constexpr int kLongestInterval = 1 << 24;  // good steps are counted in f32

void check_options(const LossScaler::Options& o) {
  check(o.init_scale > 0 && o.init_scale <= kLargest, "LossScaler: init_scale must be a positive f32, got {}",
        o.init_scale);
  check_not_subnormal("LossScaler: init_scale", o.init_scale);
  check(o.growth_factor >= 1 && o.growth_factor <= kLargest, "LossScaler: growth_factor must be at least 1, got {}",
        o.growth_factor);
  check(o.backoff_factor > 0 && o.backoff_factor <= 1, "LossScaler: backoff_factor must lie in (0, 1], got {}",
        o.backoff_factor);
  check(o.growth_interval >= 1 && o.growth_interval < kLongestInterval,
        "LossScaler: growth_interval must be from 1 to below {}, got {}", kLongestInterval, o.growth_interval);
  check(o.min_scale >= 0 && o.min_scale <= o.init_scale,
        "LossScaler: min_scale must be from 0 to init_scale = {}, got {}", o.init_scale, o.min_scale);
  check_not_subnormal("LossScaler: min_scale", o.min_scale);
}

}  // namespace

LossScaler::LossScaler(const Options& options)
    : options_(options),
      scale_("loss_scaler.scale"),
      good_steps_("loss_scaler.good_steps"),
      skipped_steps_("loss_scaler.skipped_steps"),
      finite_("loss_scaler.finite") {
  check_options(options_);
  scale_.set(Tensor::scalar(options_.init_scale));
  finite_.set_of_step();
  good_steps_.set(Tensor::scalar(0));
  skipped_steps_.set(Tensor::scalar(0));
  finite_.set(ones({}, DType::boolean));
}

LossScaler::~LossScaler() = default;

std::vector<LossScaler*> LossScaler::living() { return Registered<LossScaler>::living(); }

void LossScaler::forget_step() { fill_into(finite_.value(), 1); }

void LossScaler::move_to(Device device) {
  if (device.is_meta() || device == scale_.value().device()) return;
  for (Slot* slot : {&scale_, &good_steps_, &skipped_steps_, &finite_}) slot->set(to(slot->value(), device));
}

Tensor LossScaler::scale(const Tensor& loss) {
  check(is_floating(loss.dtype()), "LossScaler: the loss is {}; it must be floating-point", loss);
  move_to(loss.local().device());
  return mul(loss, scale_.value());
}

Tensor LossScaler::unscale(Optimizer& optimizer, double max_norm, double p) {
  const PurposeScope purpose("LossScaler::unscale");
  GradMode off(false);
  const PhaseScope phase(StepPhase::optimizer);
  const Tensor inverse = reciprocal(scale_.value());
  const Tensor norm = mul(to(agreed_grad_norm(optimizer.parameters(), p), inverse.device()), inverse);
  optimizer.set_gradient_scale(mul(clip_factor(norm, max_norm), inverse));
  finite_.assign(logical_and(finite_.value(), isfinite(norm)));
  return norm;
}

void LossScaler::update() {
  GradMode off(false);
  const PhaseScope phase(StepPhase::optimizer);
  const Tensor &scale = scale_.value(), &finite = finite_.value();
  const Tensor good = add(good_steps_.value(), 1);
  const Tensor waits = less(good, full({}, options_.growth_interval, DType::f32, scale.device()));
  const Tensor grown = mul(scale, options_.growth_factor);
  const Tensor kept = where(logical_or(waits, logical_not(isfinite(grown))), scale, grown);
  const Tensor backed_off =
      clamp(mul(scale, options_.backoff_factor), options_.min_scale, std::numeric_limits<double>::infinity());
  const Tensor next = where(finite, kept, backed_off);
  skipped_steps_.assign(add(skipped_steps_.value(), cast(logical_not(finite), DType::f32)));
  good_steps_.assign(mul(good, cast(logical_and(finite, waits), DType::f32)));
  scale_.assign(next);
  fill_into(finite, 1);
}

std::vector<std::pair<std::string, Slot*>> LossScaler::state() {
  return {{"scale", &scale_}, {"good_steps", &good_steps_}, {"skipped_steps", &skipped_steps_}};
}

}  // namespace sherd::nn
