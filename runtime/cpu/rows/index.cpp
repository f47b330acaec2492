// Gathering elements by index and summing gradients back. The backward kernels sort positions by row first (a counting
// sort keeps their order), so each row of the result is summed by one thread, in the order of the index, and written
// once: deterministic on any number of threads, and no zeroing pass.
#include <cstring>

#include "runtime/cpu/kernels.h"
#include "runtime/cpu/parallel.h"
#include "runtime/cpu/rows/ids.h"
#include "runtime/cpu/rows/strided_copy.h"
#include "runtime/cpu/tile.h"
#include "runtime/op/rows/index_attrs.h"
#include "runtime/op/rows/view_attrs.h"

namespace sherd::cpu {

namespace {

constexpr std::int64_t kGrain = 1 << 15;  // elements

/// x [outer, rows, inner] -> out [outer, index, inner]. Only a table [rows, inner] may be a part: zeros for the rest.
void gather(const KernelCall& call, int dim, const VocabularyPart& part) {
  const Tensor& x = call.in[0];
  const Tensor& index = call.in[1];
  const Tensor& out = call.out[0];
  const IdShard ids = IdShard::part_of(part, x.shape()[dim]);
  check_ids(call, index, ids);
  if (out.numel() == 0) return;
  const std::int64_t entries = index.numel();
  Shape slice = x.shape();  // one entry: [outer, 1, inner]
  slice[dim] = 1;
  // As [outer, entries, inner], whatever the shape of the index.
  Strides to = x.strides();
  std::int64_t step = 1;
  for (int d = x.ndim() - 1; d >= 0; --d) {
    to[d] = step;
    step *= d == dim ? entries : x.shape()[d];
  }
  const TileReader<std::int64_t> reader(index, index.shape());
  const std::int64_t size = byte_size(x.dtype());
  const std::int64_t grain = std::max<std::int64_t>(kGrain / std::max<std::int64_t>(numel(slice), 1), 1);
  parallel_for(entries, grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      std::int64_t buffer;
      const std::int64_t id = *reader.read(i, 1, &buffer);
      auto* target = static_cast<std::byte*>(out.raw()) + i * to[dim] * size;
      if (!ids.is_here(id)) {
        std::memset(target, 0, static_cast<std::size_t>(x.shape()[1] * size));
        continue;
      }
      auto* from = static_cast<std::byte*>(x.raw()) + (id - ids.first) * x.strides()[dim] * size;
      if (dim == 0 && x.ndim() == 2 && x.strides()[1] == 1)
        std::memcpy(target, from, static_cast<std::size_t>(x.shape()[1] * size));
      else strided_copy(x.dtype(), slice, {from, x.strides()}, {target, to}, false);
    }
  });
}

/// Positions of the index grouped by row, in order within a row: row r has positions [first[r], first[r + 1]).
struct ByRow {
  const std::int64_t* first;
  const std::int64_t* positions;
};

ByRow sort_by_row(const KernelCall& call, const Tensor& index, const IdShard& ids) {
  const std::int64_t rows = ids.here;
  auto* first = reinterpret_cast<std::int64_t*>(call.exec.scratch);
  std::int64_t* positions = first + rows + 1;
  std::fill_n(first, rows + 1, 0);
  for_each_id(call, index, ids, [&](std::int64_t, std::int64_t id) {
    if (ids.is_here(id)) ++first[id - ids.first + 1];
  });
  for (std::int64_t r = 0; r < rows; ++r) first[r + 1] += first[r];
  for_each_id(call, index, ids, [&](std::int64_t i, std::int64_t id) {
    if (ids.is_here(id)) positions[first[id - ids.first]++] = i;
  });
  // Every start has moved to the next row's start; move them back.
  for (std::int64_t r = rows; r > 0; --r) first[r] = first[r - 1];
  first[0] = 0;
  return {first, positions};
}

/// grad [outer, entries, inner], index [entries] -> out [outer, ids that are here, inner].
void scatter_sum(const KernelCall& call, std::int64_t outer, const IdShard& ids, std::int64_t inner) {
  const Tensor& grad = call.in[0];
  const Tensor& out = call.out[0];
  const std::int64_t entries = call.in[1].numel(), rows = ids.here;
  if (out.numel() == 0) return;
  const ByRow by_row = sort_by_row(call, call.in[1], ids);
  visit_compute(grad.dtype(), [&]<class C>(Type<C>) {
    const TileReader<C> reader(grad, grad.shape());
    parallel_for(outer * rows, std::max<std::int64_t>(kGrain / inner, 1), [&](std::int64_t begin, std::int64_t end) {
      C buffer[kTile], sum[kTile];
      for (std::int64_t r = begin; r < end; ++r) {
        const std::int64_t row = r % rows, base = r / rows * entries;
        if (call.accumulate && by_row.first[row] == by_row.first[row + 1]) continue;
        for (std::int64_t j = 0; j < inner; j += kTile) {
          const std::int64_t n = std::min(kTile, inner - j);
          std::fill_n(sum, n, C{0});
          for (std::int64_t k = by_row.first[row]; k < by_row.first[row + 1]; ++k) {
            const C* values = reader.read((base + by_row.positions[k]) * inner + j, n, buffer);
            for (std::int64_t i = 0; i < n; ++i) sum[i] = add_rounded(sum[i], values[i]);
          }
          write_tile(out.raw(), out.dtype(), r * inner + j, sum, n, call.accumulate);
        }
      }
    });
  });
}

void embedding(const KernelCall& call) { gather(call, 0, call.attrs.as<EmbeddingAttrs>().part); }

void embedding_backward(const KernelCall& call) {
  const Shape& out = call.out[0].shape();
  scatter_sum(call, 1, IdShard::part_of(call.attrs.as<EmbeddingAttrs>().part, out[0]), out[1]);
}

void index_select(const KernelCall& call) { gather(call, call.attrs.as<DimAttrs>().dim, {}); }

void index_select_backward(const KernelCall& call) {
  const int dim = call.attrs.as<PadToAttrs>().dim;
  const Shape& out = call.out[0].shape();
  std::int64_t outer = 1, inner = 1;
  for (int d = 0; d < out.size(); ++d)
    if (d != dim) (d < dim ? outer : inner) *= out[d];
  scatter_sum(call, outer, IdShard::all(out[dim]), inner);
}

}  // namespace

void register_index(OpTable& table) {
  using enum Device::Kind;
  table.kernel(op::embedding, cpu, embedding);
  table.kernel(op::embedding_backward, cpu, embedding_backward);
  table.kernel(op::index_select, cpu, index_select);
  table.kernel(op::index_select_backward, cpu, index_select_backward);
}

}  // namespace sherd::cpu
