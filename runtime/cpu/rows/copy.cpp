// Kernels that move or make elements without arithmetic: copy, cast, cat, pad_to, full, arange.
#include <algorithm>
#include <cstring>

#include "runtime/cpu/kernels.h"
#include "runtime/cpu/parallel.h"
#include "runtime/cpu/rows/strided_copy.h"
#include "runtime/cpu/tile.h"
#include "runtime/op/rows/create_attrs.h"
#include "runtime/op/rows/view_attrs.h"

namespace sherd::cpu {

namespace {

constexpr std::int64_t kGrain = 1 << 16;

Layout layout_of(const Tensor& t) { return {t.raw(), t.strides()}; }

// The part of `whole` that starts at `start` along `dim`.
Layout layout_at(const Tensor& whole, int dim, std::int64_t start) {
  return {static_cast<std::byte*>(whole.raw()) + start * whole.strides()[dim] * byte_size(whole.dtype()),
          whole.strides()};
}

void copy(const KernelCall& call) {
  const Tensor& from = call.in[0];
  strided_copy(from.dtype(), from.shape(), layout_of(from), layout_of(call.out[0]), call.accumulate);
}

void cast(const KernelCall& call) {
  const Tensor& from = call.in[0];
  const Tensor& to = call.out[0];
  // Through the wider side's compute type: integers stay exact, floats go to 16 bits in one rounding.
  const DType via = is_floating(from.dtype()) ? from.dtype() : to.dtype() == DType::f64 ? DType::f64 : from.dtype();
  visit_compute(via, [&]<class C>(Type<C>) {
    const TileReader<C> reader(from, to.shape());
    parallel_for(to.numel(), kGrain, [&](std::int64_t begin, std::int64_t end) {
      C buffer[kTile];
      for (std::int64_t i = begin; i < end; i += kTile) {
        const std::int64_t n = std::min(kTile, end - i);
        write_tile(to.raw(), to.dtype(), i, reader.read(i, n, buffer), n, call.accumulate);
      }
    });
  });
}

void cat(const KernelCall& call) {
  const Tensor& to = call.out[0];
  const int dim = call.attrs.as<DimAttrs>().dim;
  std::int64_t start = 0;
  for (const Tensor& part : call.in) {
    if (part.numel() > 0) strided_copy(part.dtype(), part.shape(), layout_of(part), layout_at(to, dim, start), false);
    start += part.shape()[dim];
  }
}

void zero(const Tensor& t) {
  auto* bytes = static_cast<std::byte*>(t.raw());
  parallel_for(t.bytes(), 4 * kGrain, [&](std::int64_t begin, std::int64_t end) {
    std::memset(bytes + begin, 0, static_cast<std::size_t>(end - begin));
  });
}

void pad_to(const KernelCall& call) {
  const auto& attrs = call.attrs.as<PadToAttrs>();
  const Tensor& part = call.in[0];
  const Tensor& to = call.out[0];
  if (!call.accumulate) zero(to);
  if (part.numel() == 0) return;
  strided_copy(part.dtype(), part.shape(), layout_of(part), layout_at(to, attrs.dim, attrs.start), call.accumulate);
}

void full(const KernelCall& call) {
  const Tensor& to = call.out[0];
  const double value = call.attrs.as<FullAttrs>().value;
  visit_dtype(to.dtype(), [&]<class T>(Type<T>) {
    const T element = convert<T>(value);
    T* out = to.mutable_data<T>();
    parallel_for(to.numel(), kGrain,
                 [&](std::int64_t begin, std::int64_t end) { std::fill(out + begin, out + end, element); });
  });
}

void arange(const KernelCall& call) {
  const Tensor& to = call.out[0];
  visit_dtype(to.dtype(), [&]<class T>(Type<T>) {
    T* out = to.mutable_data<T>();
    for (std::int64_t i = 0; i < to.numel(); ++i) out[i] = convert<T>(i);
  });
}

}  // namespace

void register_copy(OpTable& table) {
  using enum Device::Kind;
  table.kernel(op::copy, cpu, copy);
  table.kernel(op::cast, cpu, cast);
  table.kernel(op::cat, cpu, cat);
  table.kernel(op::pad_to, cpu, pad_to);
  table.kernel(op::full, cpu, full);
  table.kernel(op::arange, cpu, arange);
}

}  // namespace sherd::cpu
