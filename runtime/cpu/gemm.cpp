// Cutting a matrix product into pieces: rectangles of C of about a fifth of a millisecond of work, but with sides of at
// least 256 where they are cut, because every piece packs its operands again.
#include "runtime/cpu/gemm.h"

#include <utility>

#include "runtime/cpu/level.h"
#include "runtime/cpu/parallel.h"

namespace sherd::cpu {

namespace {

constexpr std::int64_t kPieceFlops = 1 << 25;
constexpr std::int64_t kMaxPieces = 64;  // of one problem
constexpr std::int64_t kRound = 16;      // rows and columns of a piece, but for the last
constexpr std::int64_t kCutSide = 512;   // shorter sides stay whole

thread_local GemmBackend chosen_backend = GemmBackend::library;

struct Grid {
  std::int64_t rows, columns;  // of a piece
  std::int64_t down, across;   // pieces
};

// Halves the longer side until the pieces are small enough.
Grid cut(const Gemm& g) {
  const std::int64_t want =
      std::clamp<std::int64_t>(2 * g.m * g.n * std::max<std::int64_t>(g.k, 1) / kPieceFlops, 1, kMaxPieces);
  Grid grid{g.m, g.n, 1, 1};
  while (grid.down * grid.across < want && std::max(grid.rows, grid.columns) >= kCutSide) {
    std::int64_t& side = grid.rows >= grid.columns ? grid.rows : grid.columns;
    side = ((side + 1) / 2 + kRound - 1) / kRound * kRound;
    grid.down = num_chunks(g.m, grid.rows);
    grid.across = num_chunks(g.n, grid.columns);
  }
  return grid;
}

template <class T>
void fill_rows(const Gemm& g, T* c) {
  const T* bias = static_cast<const T*>(g.bias);
  for (std::int64_t i = 0; i < g.m; ++i)
    if (bias) std::copy(bias, bias + g.n, c + i * g.ldc);
    else std::fill(c + i * g.ldc, c + i * g.ldc + g.n, T{});
}

// One piece: the bias is put into C first and the product added to it, which rounds once.
void run_piece(Gemm g, const void* a, const void* b, void* c, GemmBackend backend) {
  if (g.bias || (g.k == 0 && !g.accumulate)) {
    visit_dtype(g.result, [&]<class T>(Type<T>) { fill_rows(g, static_cast<T*>(c)); });
    g.accumulate = true;
    g.bias = nullptr;
  }
  if (g.k == 0) return;
  if (backend == GemmBackend::library && detail::gemm_onednn(g, a, b, c)) return;
  level().kernels.gemm_blocked(g, a, b, c);
}

// An operand without elements may have no address.
const void* at(const void* base, std::int64_t elements, DType dtype) {
  return base ? static_cast<const std::byte*>(base) + elements * byte_size(dtype) : nullptr;
}

}  // namespace

UseGemmBackend::UseGemmBackend(GemmBackend backend) : outer_(std::exchange(chosen_backend, backend)) {}
UseGemmBackend::~UseGemmBackend() { chosen_backend = outer_; }

void gemm(const Gemm& g, const void* a, const void* b, void* c) {
  if (g.m == 0 || g.n == 0 || g.batch == 0) return;
  const Grid grid = cut(g);
  const std::int64_t pieces = grid.down * grid.across;
  const std::int64_t piece_flops = 2 * grid.rows * grid.columns * std::max<std::int64_t>(g.k, 1);
  const auto run = [&, backend = chosen_backend](std::int64_t begin, std::int64_t end) {
    for (std::int64_t task = begin; task < end; ++task) {
      const std::int64_t problem = task / pieces, piece = task % pieces;
      const std::int64_t row = piece / grid.across * grid.rows, column = piece % grid.across * grid.columns;
      Gemm part = g;
      part.m = std::min(grid.rows, g.m - row);
      part.n = std::min(grid.columns, g.n - column);
      if (g.bias) part.bias = at(g.bias, column, g.result);
      const void* pa = at(a, problem * g.stride_a + row * (g.transpose_a ? 1 : g.lda), g.dtype);
      const void* pb = at(b, problem * g.stride_b + column * (g.transpose_b ? g.ldb : 1), g.dtype);
      const void* pc = at(c, problem * g.stride_c + row * g.ldc + column, g.result);
      run_piece(part, pa, pb, const_cast<void*>(pc), backend);
    }
  };
  parallel_for(g.batch * pieces, kPieceFlops / piece_flops, run);
}

}  // namespace sherd::cpu
