// Rotary positions (Su et al., "RoFormer", 2021), in the half-split form of Llama. The angles' cosines and sines are
// found in f64 by turning step by step from an exact value at every 64th position, so an entry depends on its position
// alone, wherever the call starts, and costs four products instead of a library call.
#include "runtime/cpu/rows/rope.h"

#include <cmath>

#include "runtime/cpu/heads.h"
#include "runtime/cpu/lines.h"
#include "runtime/cpu/scratch.h"
#include "runtime/op/rows/attention_attrs.h"

namespace sherd::cpu {

namespace {

constexpr std::int64_t kAnchor = 64;

// One turning pointer per pair of elements.
struct Turning {
  double *c, *s, *step_c, *step_s, *rate;
  std::int64_t pairs;

  Turning(double* memory, std::int64_t num_pairs, double theta)
      : c(memory),
        s(memory + num_pairs),
        step_c(memory + 2 * num_pairs),
        step_s(memory + 3 * num_pairs),
        rate(memory + 4 * num_pairs),
        pairs(num_pairs) {
    for (std::int64_t i = 0; i < pairs; ++i) {
      rate[i] = std::pow(theta, -static_cast<double>(i) / static_cast<double>(pairs));
      step_c[i] = std::cos(rate[i]);
      step_s[i] = std::sin(rate[i]);
    }
  }
  void set(std::int64_t position) {
    for (std::int64_t i = 0; i < pairs; ++i) {
      c[i] = std::cos(static_cast<double>(position) * rate[i]);
      s[i] = std::sin(static_cast<double>(position) * rate[i]);
    }
  }
  void step() {
    for (std::int64_t i = 0; i < pairs; ++i) {
      const double turned = c[i] * step_c[i] - s[i] * step_s[i];
      s[i] = s[i] * step_c[i] + c[i] * step_s[i];
      c[i] = turned;
    }
  }
};

// table[t] holds K/2 cosines, then K/2 sines, of position first + t.
template <class A>
void fill_table(Turning turning, const RopeAttrs& attrs, std::int64_t positions, A* table) {
  const std::int64_t pairs = turning.pairs, first = attrs.first_position;
  const double sign = attrs.inverse ? -1 : 1;
  for (std::int64_t p = first / kAnchor * kAnchor; p < first + positions; ++p) {
    if (p % kAnchor == 0) turning.set(p);
    else turning.step();
    if (p < first) continue;
    A* const row = table + (p - first) * 2 * pairs;
    for (std::int64_t i = 0; i < pairs; ++i) row[i] = static_cast<A>(turning.c[i]);
    for (std::int64_t i = 0; i < pairs; ++i) row[pairs + i] = static_cast<A>(sign * turning.s[i]);
  }
}

template <class A>
void turn_row(const A* __restrict x, const A* __restrict angles, std::int64_t pairs, A* __restrict y) {
  const A *const c = angles, *const s = angles + pairs;
  for (std::int64_t i = 0; i < pairs; ++i) {
    y[i] = x[i] * c[i] - x[pairs + i] * s[i];
    y[pairs + i] = x[pairs + i] * c[i] + x[i] * s[i];
  }
}

template <class T>
void rope(const KernelCall& c) {
  using A = Accumulator<T>;
  const Tensor &x = c.in[0], &out = c.out[0];
  const std::int64_t heads = x.size(1), positions = x.size(2), k = x.size(3);
  if (out.numel() == 0) return;
  ScratchCursor scratch(c.exec);
  const Heads<T> in(x, scratch);
  const auto& attrs = c.attrs.as<RopeAttrs>();
  A* const table = scratch.take<A>(positions * k);
  fill_table(Turning(scratch.take<double>(5 * k / 2), k / 2, attrs.theta), attrs, positions, table);
  const HeadsOut<T> result(out);
  parallel_for(x.size(0) * heads * positions, kLineGrain / k, [&](std::int64_t begin, std::int64_t end) {
    constexpr bool direct = std::is_same_v<T, A>;
    A* const buffer = direct ? nullptr : thread_workspace<A>(WorkspaceUse::row, 2 * k);
    for (std::int64_t r = begin; r < end; ++r) {
      const std::int64_t t = r % positions, head = r / positions;
      const A* const row = load_row(in.at(head / heads, head % heads, t), k, buffer);
      T* const to = result.at(head / heads, head % heads, t);
      if constexpr (direct) {
        turn_row(row, table + t * k, k / 2, to);
      } else {
        turn_row(row, table + t * k, k / 2, buffer + k);
        convert_row(buffer + k, k, to);
      }
    }
  });
}

void rope_kernel(const KernelCall& c) {
  visit_floating(c.in[0].dtype(), [&]<class T>(Type<T>) { rope<T>(c); });
}

}  // namespace

std::int64_t rope_scratch(const InferCall& call) {
  const TensorMeta& x = call.in[0];
  const std::int64_t size = x.dtype == DType::f64 ? 8 : 4;
  return heads_scratch_bytes(x) + ScratchCursor::rounded(x.size(2) * x.size(3) * size) +
         ScratchCursor::rounded(5 * x.size(3) / 2 * 8);
}

void register_rope(OpTable& table) { table.kernel(op::rope, Device::Kind::cpu, rope_kernel, rope_scratch); }

}  // namespace sherd::cpu
