// Multi-tensor optimizer kernels: one pass over the memory of all tensors of a call. The lists are flattened into
// extents; extents that follow each other in every list merge (parameters in one arena, as a shard group lays them
// out, become one), and the elements of all extents together are cut into equal chunks, so a hundred small biases
// cost one parallel loop. Every element is independent, hence the bits do not depend on the cuts.
#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "runtime/cpu/kernels.h"
#include "runtime/cpu/parallel.h"
#include "runtime/cpu/rows/power_sum_block.h"
#include "runtime/op/rows/optimizer_attrs.h"
#include "runtime/op/rows/optimizer_extents.h"

namespace sherd::cpu {

namespace {

constexpr std::int64_t kGrain = 16384;  // elements per chunk: some 20 us of AdamW

double scalar(const Tensor& t) { return t.dtype() == DType::f64 ? *t.data<double>() : double{*t.data<float>()}; }

using Extent = OptimizerExtent;

/// Calls fn(extent, begin, end) for ranges that together cover all extents, in parallel.
template <class Fn>
void for_each_range(std::span<const Extent> extents, const Fn& fn) {
  std::vector<std::int64_t> ends;  // running totals
  std::int64_t total = 0;
  for (const Extent& e : extents) ends.push_back(total += e.count);
  parallel_for(total, kGrain, [&](std::int64_t begin, std::int64_t end) {
    auto i = static_cast<std::size_t>(std::upper_bound(ends.begin(), ends.end(), begin) - ends.begin());
    for (; begin < end; ++i) {
      const std::int64_t first = ends[i] - extents[i].count, stop = std::min(end, ends[i]);
      fn(extents[i], begin - first, stop - first);
      begin = stop;
    }
  });
}

/// Calls fn with pointers T* (parameter and states) and const G* (gradient) of the extent's types.
template <class Fn>
void visit_types(const Extent& e, const Fn& fn) {
  const auto with_grad = [&]<class T>(Type<T>) {
    visit_floating(e.grad_dtype, [&]<class G>(Type<G> grad) { fn(Type<T>{}, grad); });
  };
  if (e.dtype == DType::f64) with_grad(Type<double>{});
  else with_grad(Type<float>{});
}

// ---- AdamW: Loshchilov and Hutter, "Decoupled weight decay regularization", algorithm 2 ----

struct AdamW {
  double keep, beta1, one_minus_beta1, beta2, one_minus_beta2, step_size, eps, scale;
};

AdamW coefficients(const AdamWAttrs& a, double lr, double step, double scale) {
  // lr / correction1 * m / (sqrt(v) / root + eps), with root = sqrt(correction2) taken out of the fraction.
  const double correction1 = 1 - std::pow(a.beta1, step), root = std::sqrt(1 - std::pow(a.beta2, step));
  return {1 - lr * a.weight_decay, a.beta1,      1 - a.beta1, a.beta2, 1 - a.beta2,
          lr / correction1 * root, a.eps * root, scale};
}

template <class T, class G>
void adamw_range(T* __restrict p, T* __restrict m, T* __restrict v, const G* __restrict g, std::int64_t n,
                 const AdamW& c) {
  const T keep = static_cast<T>(c.keep), beta1 = static_cast<T>(c.beta1), one1 = static_cast<T>(c.one_minus_beta1),
          beta2 = static_cast<T>(c.beta2), one2 = static_cast<T>(c.one_minus_beta2),
          step_size = static_cast<T>(c.step_size), eps = static_cast<T>(c.eps), scale = static_cast<T>(c.scale);
  for (std::int64_t i = 0; i < n; ++i) {
    const T grad = convert<T>(g[i]) * scale;
    const T m_new = std::fma(beta1, m[i], one1 * grad);
    const T v_new = std::fma(beta2, v[i], one2 * grad * grad);
    m[i] = m_new;
    v[i] = v_new;
    p[i] = std::fma(p[i], keep, -(step_size * m_new) / (std::sqrt(v_new) + eps));
  }
}

void adamw(const KernelCall& call) {
  const auto& a = call.attrs.as<AdamWAttrs>();
  const auto n = static_cast<std::size_t>(a.count);
  const AdamW c = coefficients(a, scalar(call.in[4 * n]), scalar(call.in[4 * n + 1]), scalar(call.in[4 * n + 2]));
  if (!std::isfinite(c.scale)) return;
  for_each_range(optimizer_extents(call.in, n, 4), [&](const Extent& e, std::int64_t begin, std::int64_t end) {
    visit_types(e, [&]<class T, class G>(Type<T>, Type<G>) {
      const auto at = [&](std::size_t list) { return reinterpret_cast<T*>(e.at[list]) + begin; };
      adamw_range(at(0), at(1), at(2), reinterpret_cast<const G*>(e.at[3]) + begin, end - begin, c);
    });
  });
}

// ---- SGD ----

struct Sgd {
  double lr, momentum, weight_decay, scale;
  bool nesterov;
};

template <class T, class G>
void sgd_range(T* __restrict p, T* __restrict momentum, const G* __restrict g, std::int64_t n, const Sgd& c) {
  const T lr = static_cast<T>(c.lr), mu = static_cast<T>(c.momentum), decay = static_cast<T>(c.weight_decay),
          scale = static_cast<T>(c.scale);
  for (std::int64_t i = 0; i < n; ++i) {
    T update = convert<T>(g[i]) * scale + decay * p[i];
    if (momentum) {
      const T velocity = mu * momentum[i] + update;
      momentum[i] = velocity;
      update = c.nesterov ? update + mu * velocity : velocity;
    }
    p[i] = p[i] - lr * update;
  }
}

void sgd(const KernelCall& call) {
  const auto& a = call.attrs.as<SgdAttrs>();
  const auto n = static_cast<std::size_t>(a.count);
  const bool has_momentum = a.momentum != 0;
  const std::size_t lists = has_momentum ? 3 : 2;
  const Sgd c{scalar(call.in[lists * n]), a.momentum, a.weight_decay, scalar(call.in[lists * n + 1]), a.nesterov};
  if (!std::isfinite(c.scale)) return;
  for_each_range(optimizer_extents(call.in, n, lists), [&](const Extent& e, std::int64_t begin, std::int64_t end) {
    visit_types(e, [&]<class T, class G>(Type<T>, Type<G>) {
      const auto at = [&](std::size_t list) { return reinterpret_cast<T*>(e.at[list]) + begin; };
      sgd_range(at(0), has_momentum ? at(1) : nullptr, reinterpret_cast<const G*>(e.at[lists - 1]) + begin, end - begin,
                c);
    });
  });
}

// ---- counts of steps ----

void count_step(const KernelCall& call) {
  const auto n = static_cast<std::size_t>(call.attrs.as<CountStepAttrs>().count);
  if (!std::isfinite(scalar(call.in[n]))) return;
  for (const Tensor& count : call.in.first(n))
    if (count.dtype() == DType::f64) *count.mutable_data<double>() += 1;
    else *count.mutable_data<float>() += 1;
}

// ---- sum of powers ----

// Folds the power sums of `tensors` into `total`, in the order of their blocks.
double power_sum_of(const KernelCall& call, std::span<const Tensor> tensors, double total) {
  const double p = call.attrs.as<PowerSumAttrs>().p;
  auto* partial = reinterpret_cast<double*>(call.exec.scratch);
  std::vector<std::int64_t> ends;  // blocks of tensors 0..i
  std::int64_t blocks = 0;
  for (const Tensor& t : tensors) {
    if (!t.is_contiguous()) fail("power_sum of {} needs dense tensors", describe(t));
    ends.push_back(blocks += num_chunks(t.numel(), kPowerSumBlock));
  }
  parallel_for(blocks, 2, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t block = begin; block < end; ++block) {
      const auto i = static_cast<std::size_t>(std::upper_bound(ends.begin(), ends.end(), block) - ends.begin());
      const Tensor& t = tensors[i];
      const std::int64_t first = (block - (ends[i] - num_chunks(t.numel(), kPowerSumBlock))) * kPowerSumBlock;
      const std::int64_t count = std::min(kPowerSumBlock, t.numel() - first);
      visit_dtype(t.dtype(), [&]<class T>(Type<T>) {
        if constexpr (is_floating(dtype_of<T>)) partial[block] = power_sum_block(t.data<T>() + first, count, p);
      });
    }
  });
  for (std::int64_t b = 0; b < blocks; ++b) total = std::isinf(p) ? larger(total, partial[b]) : total + partial[b];
  return total;
}

void power_sum(const KernelCall& call) { *call.out[0].mutable_data<double>() = power_sum_of(call, call.in, 0); }

void power_sum_from(const KernelCall& call) {
  const double before = call.in[0].defined() ? *call.in[0].data<double>() : 0;
  *call.out[0].mutable_data<double>() = power_sum_of(call, call.in.subspan(1), before);
}

}  // namespace

void register_optimizer(OpTable& table) {
  table.kernel(op::adamw, Device::Kind::cpu, adamw);
  table.kernel(op::sgd, Device::Kind::cpu, sgd);
  table.kernel(op::count_step, Device::Kind::cpu, count_step);
  table.kernel(op::power_sum, Device::Kind::cpu, power_sum);
  table.kernel(op::power_sum_from, Device::Kind::cpu, power_sum_from);
}

}  // namespace sherd::cpu
