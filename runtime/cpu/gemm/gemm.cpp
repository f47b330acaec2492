// Choosing an engine, and what the engines leave to the seam. The library works on one thread and packs its operands
// at every call, so its problems are cut here: into rectangles of C of about a fifth of a millisecond of work, but with
// sides of at least 256 where they are cut.
#include "runtime/cpu/gemm/gemm.h"

#include <utility>

#include "runtime/cpu/gemm/gemm_tree.h"
#include "runtime/cpu/gemm/onednn.h"
#include "runtime/cpu/kernels.h"
#include "runtime/cpu/parallel.h"

namespace sherd::cpu {

namespace {

constexpr std::int64_t kPieceFlops = 1 << 25;
constexpr std::int64_t kTaskFlops = 1 << 22;  // of small problems
constexpr std::int64_t kMaxPieces = 64;       // of one problem
constexpr std::int64_t kRound = 16;           // rows and columns of a piece, but for the last
constexpr std::int64_t kCutSide = 512;        // shorter sides stay whole
constexpr std::int64_t kTreeSide = 256;       // of our own engine's rectangles, which none is shorter than
constexpr std::int64_t kManyRows = 16;        // sum in one order, however many there are

thread_local constinit GemmBackend chosen_backend __attribute__((tls_model("initial-exec"))) = GemmBackend::fastest;

// Halves the longer side until the pieces are small enough.
GemmGrid cut(const Gemm& g) {
  const std::int64_t want = std::clamp<std::int64_t>(2 * g.m * g.n * g.k / kPieceFlops, 1, kMaxPieces);
  GemmGrid grid{g.m, g.n, 1, 1, true};
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

// K = 0: the bias or zeros.
void fill(const Gemm& g, void* c) {
  visit_dtype(g.result, [&]<class T>(Type<T>) {
    for (std::int64_t problem = 0; problem < g.batch; ++problem)
      fill_rows(g, static_cast<T*>(c) + problem * g.stride_c);
  });
}

// An operand without elements may have no address.
const void* at(const void* base, std::int64_t elements, DType dtype) {
  return base ? static_cast<const std::byte*>(base) + elements * byte_size(dtype) : nullptr;
}

// Calls fn(part of g, its a, b, c) for every problem of the batch.
template <class Fn>
void for_problems(const Gemm& g, const void* a, const void* b, void* c, std::int64_t begin, std::int64_t end,
                  const Fn& fn) {
  for (std::int64_t i = begin; i < end; ++i)
    fn(at(a, i * g.stride_a, g.dtype), at(b, i * g.stride_b, g.dtype),
       const_cast<void*>(at(c, i * g.stride_c, g.result)));
}

void run_library(const Gemm& g, const void* a, const void* b, void* c) {
  const GemmGrid grid = cut(g);
  const std::int64_t pieces = grid.down * grid.across;
  const std::int64_t piece_flops = 2 * grid.rows * grid.columns * g.k;
  parallel_for(g.batch * pieces, kPieceFlops / piece_flops, [&](std::int64_t begin, std::int64_t end) {
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
      part.epilogue = nullptr;
      gemm_rectangle(part, grid, pa, pb, const_cast<void*>(pc));
      if (g.epilogue) (*g.epilogue)(row, part.m, column, part.n);
    }
  });
}

// Problems that share B, and whose rows go on, are one.
Gemm joined(const Gemm& g) {
  const bool is_one = g.batch > 1 && g.stride_b == 0 && !g.transpose_a && g.m >= kManyRows &&
                      g.stride_a == g.m * g.lda && g.stride_c == g.m * g.ldc;
  Gemm one = g;
  if (is_one) one.m *= std::exchange(one.batch, 1);
  return one;
}

// Small problems are shared out whole, large ones are cut by the engine.
void run_blocked(const Gemm& g, const void* a, const void* b, void* c) {
  const auto one = [&g](const void* pa, const void* pb, void* pc) { kernels().gemm_blocked(g, pa, pb, pc); };
  const std::int64_t flops = 2 * g.m * g.n * g.k;
  if (g.batch == 1 || flops > kPieceFlops) return for_problems(g, a, b, c, 0, g.batch, one);
  parallel_for(g.batch, kTaskFlops / flops,
               [&](std::int64_t begin, std::int64_t end) { for_problems(g, a, b, c, begin, end, one); });
}

// Only the library knows AMX, which multiplies bf16 many times faster than vectors do. It is not opened before.
bool uses_library(const Gemm& g) {
  static const bool has_tiles = __builtin_cpu_supports("amx-bf16");
  const bool is_faster = g.dtype == DType::bf16 && has_tiles && kernels().multiplies_bf16;
  const bool is_wanted =
      chosen_backend == GemmBackend::library || (chosen_backend == GemmBackend::fastest && is_faster);
  return is_wanted && detail::onednn_is_built_in();
}

}  // namespace

UseGemmBackend::UseGemmBackend(GemmBackend backend) : outer_(std::exchange(chosen_backend, backend)) {}
UseGemmBackend::~UseGemmBackend() { chosen_backend = outer_; }

std::string bf16_engine() {
  return uses_library({.dtype = DType::bf16}) ? "oneDNN " + onednn_library().version : "own kernels";
}

GemmGrid gemm_grid(const Gemm& g) {
  if (uses_library(g)) return cut(g);
  const auto along = [](std::int64_t side) { return std::max<std::int64_t>(side / kTreeSide, 1); };
  return {kTreeSide, kTreeSide, along(g.m), along(g.n)};
}

void gemm_rectangle(const Gemm& g, const GemmGrid& grid, const void* a, const void* b, void* c) {
  if (!grid.is_library || !detail::gemm_onednn(g, a, b, c)) kernels().gemm_blocked(g, a, b, c);
}

void gemm(const Gemm& g, const void* a, const void* b, void* c) {
  if (g.m == 0 || g.n == 0 || g.batch == 0) return;
  if (g.k == 0) {
    if (!g.accumulate) fill(g, c);
    if (g.epilogue) (*g.epilogue)(0, g.m, 0, g.n);
  } else if (uses_library(g)) {
    run_library(g, a, b, c);
  } else {
    run_blocked(joined(g), a, b, c);
  }
}

}  // namespace sherd::cpu
