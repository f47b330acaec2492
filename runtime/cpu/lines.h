#pragma once
// Kernels that work on whole lines along one dim of dense tensors. Lines that are not contiguous, or whose dtype is not
// the one computed in, pass through a small buffer; several neighbours at a time, so that every cache line read is
// used.
#include <algorithm>
#include <array>

#include "runtime/cpu/convert.h"
#include "runtime/cpu/parallel.h"
#include "runtime/cpu/workspace.h"
#include "runtime/tensor/shape.h"

namespace sherd::cpu {

/// A dense tensor as outer x length x inner around one dim.
struct Lines {
  std::int64_t outer = 1, length = 1, inner = 1;
  static Lines along(const Shape& shape, int dim) {
    Lines lines;
    for (int d = 0; d < shape.size(); ++d) (d < dim ? lines.outer : d == dim ? lines.length : lines.inner) *= shape[d];
    return lines;
  }
};

/// Elements per chunk of row-wise kernels.
inline constexpr std::int64_t kLineGrain = 1 << 14;

namespace detail {

inline constexpr std::int64_t kNeighbours = 16;

template <class A, class T, std::size_t N, class Fn>
void map_rows(const Lines& lines, const std::array<const T*, N>& in, T* out, const Fn& fn) {
  const std::int64_t n = lines.length;
  parallel_for(lines.outer, kLineGrain / n, [&](std::int64_t begin, std::int64_t end) {
    constexpr bool direct = std::is_same_v<A, T>;
    A* const buffer = direct ? nullptr : thread_workspace<A>(WorkspaceUse::row, static_cast<std::int64_t>(N + 1) * n);
    for (std::int64_t r = begin; r < end; ++r) {
      std::array<const A*, N> rows;
      for (std::size_t i = 0; i < N; ++i)
        rows[i] = load_row(in[i] + r * n, n, direct ? nullptr : buffer + static_cast<std::int64_t>(i) * n);
      if constexpr (direct) {
        fn(rows, n, out + r * n);
      } else {
        A* const result = buffer + static_cast<std::int64_t>(N) * n;
        fn(rows, n, result);
        convert_row(result, n, out + r * n);
      }
    }
  });
}

template <class A, class T, std::size_t N, class Fn>
void map_columns(const Lines& lines, const std::array<const T*, N>& in, T* out, const Fn& fn) {
  const std::int64_t n = lines.length, inner = lines.inner, groups = num_chunks(inner, kNeighbours);
  parallel_for(lines.outer * groups, kLineGrain / (n * kNeighbours), [&](std::int64_t begin, std::int64_t end) {
    constexpr auto num_in = static_cast<std::int64_t>(N);
    A* const buffer = thread_workspace<A>(WorkspaceUse::row, (num_in * kNeighbours + 1) * n);
    A* const result = buffer + num_in * kNeighbours * n;
    for (std::int64_t task = begin; task < end; ++task) {
      const std::int64_t first = task % groups * kNeighbours, width = std::min(kNeighbours, inner - first);
      const std::int64_t at = task / groups * n * inner + first;
      for (std::int64_t i = 0; i < num_in; ++i)
        for (std::int64_t j = 0; j < n; ++j)
          for (std::int64_t w = 0; w < width; ++w)
            buffer[(i * kNeighbours + w) * n + j] = convert<A>(in[static_cast<std::size_t>(i)][at + j * inner + w]);
      for (std::int64_t w = 0; w < width; ++w) {
        std::array<const A*, N> rows;
        for (std::size_t i = 0; i < N; ++i) rows[i] = buffer + (static_cast<std::int64_t>(i) * kNeighbours + w) * n;
        fn(rows, n, result);
        for (std::int64_t j = 0; j < n; ++j) out[at + j * inner + w] = convert<T>(result[j]);
      }
    }
  });
}

}  // namespace detail

/// Calls fn(lines of the inputs, length, line of the output), all in the accumulator type, once for every line.
template <class T, std::size_t N, class Fn>
void map_lines(const Lines& lines, const std::array<const T*, N>& in, T* out, const Fn& fn) {
  if (lines.outer * lines.length * lines.inner == 0) return;
  if (lines.inner == 1) detail::map_rows<Accumulator<T>>(lines, in, out, fn);
  else detail::map_columns<Accumulator<T>>(lines, in, out, fn);
}

}  // namespace sherd::cpu
