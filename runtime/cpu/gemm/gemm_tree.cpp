// Rectangles of C one after the other, each over all problems: products and partial sums stay in the cache of the
// thread that has them, and C is written once. Sums of 1, 2, 4, ... products wait as the digits of a binary counter:
//
//   products  1: [0]      2: [0+1]      3: [0+1] [2]      4: [(0+1)+(2+3)]      5: [(0+1)+(2+3)] [4]
#include "runtime/cpu/gemm/gemm_tree.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <utility>
#include <vector>

#include "runtime/cpu/convert.h"
#include "runtime/cpu/kernels.h"
#include "runtime/cpu/parallel.h"
#include "runtime/cpu/workspace.h"

namespace sherd::cpu {

namespace {

template <class T, class S>
void add_rows(const T* terms, std::int64_t n, S* sums) {
  std::int64_t i = 0;
  for (; i + kLanes<S> <= n; i += kLanes<S>) store<S>(sums + i, load(sums + i) + load_as_accumulators(terms + i));
  for (; i < n; ++i) sums[i] += convert<S>(terms[i]);
}

template <class T, class S>
struct Rectangle {
  const Gemm& g;
  const GemmGrid& grid;
  const T *a, *b;  // of the rectangle's first row, or column
  S* c;
  std::int64_t rows, columns;
  std::int64_t size = rows * columns;

  void product(std::int64_t problem, T* to) const {
    Gemm one = g;
    one.result = g.dtype;
    one.m = rows;
    one.n = columns;
    one.ldc = columns;
    one.batch = 1;
    one.accumulate = false;
    gemm_rectangle(one, grid, a + problem * g.stride_a, b + problem * g.stride_b, to);
  }

  void first_of_two(std::int64_t problem, T* term, S* sum) const {
    if constexpr (std::is_same_v<T, S>) {
      product(problem, sum);
    } else {
      product(problem, term);
      convert_row(term, size, sum);
    }
  }

  void put(const S* sum) const {
    for (std::int64_t i = 0; i < rows; ++i)
      if (g.accumulate) add_rows(sum + i * columns, columns, c + i * g.ldc);
      else std::copy_n(sum + i * columns, columns, c + i * g.ldc);
  }

  void run() const {
    const auto levels = static_cast<std::size_t>(std::bit_width(static_cast<std::uint64_t>(g.batch)));
    S* const memory = thread_workspace<S>(WorkspaceUse::tiles, size * static_cast<std::int64_t>(levels));
    T* const term = thread_workspace<T>(WorkspaceUse::row, size);
    std::vector<S*> sums(levels);  // of 2^k products, where digit k of their number is set
    for (std::size_t k = 0; k < levels; ++k) sums[k] = memory + static_cast<std::int64_t>(k) * size;
    for (std::int64_t problem = 0; problem < g.batch; ++problem) {
      if ((problem & 1) == 0) {
        first_of_two(problem, term, sums[0]);
        continue;
      }
      product(problem, term);
      add_rows(term, size, sums[0]);
      std::size_t k = 1;
      for (; (problem >> k & 1) != 0; ++k) add_rows(sums[k - 1], size, sums[k]);
      std::swap(sums[k], sums[k - 1]);
    }
    const S* sum = nullptr;
    for (std::size_t k = 0; k < levels; ++k) {
      if ((g.batch >> k & 1) == 0) continue;
      if (sum) add_rows(sum, size, sums[k]);
      sum = sums[k];
    }
    put(sum);
  }
};

template <class T, class S>
void tree(const Gemm& g, const T* a, const T* b, S* c) {
  const GemmGrid grid = gemm_grid(g);
  parallel_for(grid.down * grid.across, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t task = begin; task < end; ++task) {
      const std::int64_t down = task % grid.down, across = task / grid.down;
      const std::int64_t row = down * grid.rows, column = across * grid.columns;
      Rectangle<T, S>{.g = g,
                      .grid = grid,
                      .a = a + row * (g.transpose_a ? 1 : g.lda),
                      .b = b + column * (g.transpose_b ? g.ldb : 1),
                      .c = c + row * g.ldc + column,
                      .rows = down + 1 < grid.down ? grid.rows : g.m - row,
                      .columns = across + 1 < grid.across ? grid.columns : g.n - column}
          .run();
    }
  });
}

}  // namespace

void gemm_tree(const Gemm& g, const void* a, const void* b, void* c) {
  if (g.k == 0) {
    Gemm one = g;
    one.batch = 1;
    return gemm(one, a, b, c);
  }
  visit_floating(g.dtype, [&]<class T>(Type<T>) {
    using S = Accumulator<T>;
    tree(g, static_cast<const T*>(a), static_cast<const T*>(b), static_cast<S*>(c));
  });
}

}  // namespace sherd::cpu
