// Our own matrix product, after Goto and van de Geijn, "Anatomy of high-performance matrix multiplication" (2008), with
// the loops of a machine whose second-level cache is large: a few rows of A stay in the first level while a block of B
// streams past them from the second.
//
//   a block of B:  kBlockK x kPieceColumns, or a few times that; packed into panels of kPanel columns as accumulators,
//                  shared by all pieces
//   pieces of C:   kPieceRows x kPieceColumns, in parallel; their part of the block of B stays in the second-level
//                  cache
//   in a piece:    kBlockRows rows of A at a time, as they lie in memory where they are rows of accumulators, else
//                  packed; each meets every panel of B in registers, while the rows of A after it come from memory
//
// A sum is built in the same order whatever the pieces: products of a block of K in order, blocks in order.
#include <tuple>

#include "runtime/cpu/gemm_few_rows.h"
#include "runtime/cpu/kernels.h"
#include "runtime/cpu/parallel.h"
#include "runtime/cpu/tile_gemm.h"
#include "runtime/cpu/transpose.h"
#include "runtime/cpu/workspace.h"

namespace sherd::cpu {

namespace {

constexpr std::int64_t kLine = 64;  // bytes of a cache line
constexpr std::int64_t kBlockK = kVecBytes == 64 ? 384 : 256;
constexpr std::int64_t kPieceColumns = kVecBytes == 64 ? 384 : 192;
constexpr std::int64_t kPieceRows = 8 * kBlockRows;
constexpr std::int64_t kMinPieces = 12;          // beside a block of B, or their rows are halved, twice at most,
constexpr std::int64_t kMaxAcross = 4;           // and if that is not enough, so many lie side by side
constexpr std::int64_t kSums = 1 << 20;          // elements of C that wait in a buffer for their one rounding
constexpr std::int64_t kTaskFlops = 1 << 22;     // at least, or tasks cost more than they spread
constexpr std::int64_t kTaskElements = 1 << 15;  // the same for packing

template <class A>
constexpr std::int64_t kPanel = kBlockVectors* kLanes<A>;

constexpr std::int64_t round_up(std::int64_t n, std::int64_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

// As convert_row, for a length known to the compiler: a few loads and stores.
template <std::int64_t N, class T>
[[gnu::always_inline]] inline void convert_block(const T* from, Accumulator<T>* to) {
  using A = Accumulator<T>;
  if constexpr (N % kLanes<A> == 0) {
    for (std::int64_t i = 0; i < N; i += kLanes<A>) store<A>(to + i, load_as_accumulators(from + i));
  } else if constexpr (std::is_same_v<T, A>) {
    std::memcpy(to, from, N * sizeof(A));
  } else {
    for (std::int64_t i = 0; i < N; ++i) to[i] = convert<A>(from[i]);
  }
}

// A block of B, packed: panel j starts at j * (rows of the block).
template <class A>
struct PackedB {
  const A* data;
  std::int64_t columns;  // padded to whole vectors
};

// Rows [p, p + k), columns [first, first + n) of op(B); columns beyond n are zero.
template <class A, class T>
PackedB<A> pack_block(const Gemm& g, const T* b, std::int64_t p, std::int64_t k, std::int64_t first, std::int64_t n) {
  const std::int64_t columns = round_up(n, kLanes<A>);
  A* const packed = thread_workspace<A>(WorkspaceUse::gemm_shared, columns * k);
  const auto panel = [=](std::int64_t j) {
    const std::int64_t width = std::min(kPanel<A>, columns - j);
    return std::tuple{packed + j * k, width, std::min(width, n - j)};
  };
  if (g.transpose_b) {
    parallel_for(num_chunks(n, kPanel<A>), kTaskElements / (kPanel<A> * k), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t j = begin * kPanel<A>; j < std::min(end * kPanel<A>, n); j += kPanel<A>) {
        const auto [to, width, here] = panel(j);
        transpose_tile(b + (first + j) * g.ldb + p, g.ldb, here, k, A{1}, to, width);
        for (std::int64_t q = 0; q < k && here < width; ++q)
          std::fill(to + q * width + here, to + (q + 1) * width, A{});
      }
    });
  } else {
    parallel_for(k, kTaskElements / columns, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t q = begin; q < end; ++q)
        for (std::int64_t j = 0; j < n; j += kPanel<A>) {
          const auto [to, width, here] = panel(j);
          const T* const from = b + (p + q) * g.ldb + first + j;
          if (here == kPanel<A>) {
            convert_block<kPanel<A>>(from, to + q * kPanel<A>);
            continue;
          }
          convert_row(from, here, to + q * width);
          std::fill(to + q * width + here, to + (q + 1) * width, A{});
        }
    });
  }
  return {packed, columns};
}

// Where sums are built: in C itself if it holds accumulators; else in a buffer of the piece if one block of K is all,
// and in one of some rows of C if sums wait there for the next block.
template <class A>
struct Sums {
  A* data;
  std::int64_t ld, row, column;  // of the first element: row of the problem, packed column
  A* at(std::int64_t i, std::int64_t j) const { return data + (i - row) * ld + (j - column); }
};

// A rectangle of C within the packed columns, and one block of K.
template <class T, class R>
struct Piece {
  using A = Accumulator<T>;
  static constexpr bool converts = !std::is_same_v<R, A>;
  // Between panels of a transposed A: a cache line more than they hold, or all of them would fall into one set.
  static constexpr std::int64_t kPanelA = kBlockRows * kBlockK + kLine / static_cast<std::int64_t>(sizeof(A));
  static constexpr std::int64_t kPackedA = kPieceRows / kBlockRows * kPanelA;

  const Gemm& g;
  const T* a;
  PackedB<A> b;
  R* c;  // of column `first` of the problem
  Sums<A> sums;
  std::int64_t first;                       // where the packed columns start
  std::int64_t row, rows, column, columns;  // rows of the problem, columns of the packed ones
  std::int64_t p, k;                        // products [p, p + k)
  A* packed_a;                              // [kPackedA]

  // Transposed rows of A as panels [k, kBlockRows].
  void pack_a() const {
    if constexpr (kLanes<A> == 2 * kBlockRows)
      if (rows % kLanes<A> == 0 && k % 2 == 0) return pack_pairs_of_a(std::make_integer_sequence<int, kBlockRows>{});
    for (std::int64_t q = 0; q < k; ++q) {
      const T* const from = a + (p + q) * g.lda + row;
      A* to = packed_a + q * kBlockRows;
      std::int64_t i = 0;
      for (; i + kBlockRows <= rows; i += kBlockRows, to += kPanelA) convert_block<kBlockRows>(from + i, to);
      for (std::int64_t r = 0; i + r < rows; ++r) to[r] = convert<A>(from[i + r]);
    }
  }

  // Two rows of two panels at a time: whole vectors.
  template <int... L>
  void pack_pairs_of_a(std::integer_sequence<int, L...>) const {
    for (std::int64_t q = 0; q < k; q += 2) {
      const T* const from = a + (p + q) * g.lda + row;
      A* to = packed_a + q * kBlockRows;
      for (std::int64_t i = 0; i < rows; i += kLanes<A>, to += 2 * kPanelA) {
        const Vec<A> x = load_as_accumulators(from + i), y = load_as_accumulators(from + g.lda + i);
        store<A>(to, __builtin_shufflevector(x, y, L..., (kLanes<A> + L)...));
        store<A>(to + kPanelA, __builtin_shufflevector(x, y, (kBlockRows + L)..., (kLanes<A> + kBlockRows + L)...));
      }
    }
  }

  // kBlockRows rows (or what is left) from `i` on.
  TileA<A> rows_of_a(std::int64_t i, std::int64_t here) const {
    if (g.transpose_a) return {packed_a + i / kBlockRows * kPanelA, 1, kBlockRows};
    const T* from = a + (row + i) * g.lda + p;
    if constexpr (std::is_same_v<T, A>) {
      return {from, g.lda, 1};
    } else {
      for (std::int64_t r = 0; r < here; ++r) convert_row(from + r * g.lda, k, packed_a + r * k);
      return {packed_a, k, 1};
    }
  }

  // What the rows from `i` on, at the panel of column j, ask for: a row of the next ones, or of a transposed A a run of
  // lines of what the next piece will pack.
  TileAhead ahead(std::int64_t i, std::int64_t j) const {
    constexpr auto bytes = static_cast<std::int64_t>(sizeof(T));
    const std::int64_t panel = (j - column) / kPanel<A>, next = row + i + kBlockRows + panel;
    if (!g.transpose_a) {
      if (next >= g.m || panel >= kBlockRows) return {sums.at(row + i, j), 0};
      return {a + next * g.lda + p, kAheadProducts * bytes};
    }
    const std::int64_t lines = std::max<std::int64_t>(rows * bytes / kLine, 1), run = num_chunks(k, kAheadProducts);
    const std::int64_t block = i / kBlockRows * num_chunks(columns, kPanel<A>) + panel, q = block / lines * run;
    if (row + rows >= g.m || q >= k) return {sums.at(row + i, j), 0};
    return {a + (p + q) * g.lda + row + rows + block % lines * (kLine / bytes), g.lda * bytes};
  }

  // The rows from `i` on times all panels. The first block of K starts with C or the bias.
  void block(std::int64_t i, std::int64_t here) const {
    const TileA<A> left = rows_of_a(i, here);
    for (std::int64_t j = column; j < column + columns; j += kPanel<A>) {
      const std::int64_t width = std::min(kPanel<A>, b.columns - j);
      const TileB<A> right{b.data + j * k, width, true};
      A* const to = sums.at(row + i, j);
      TileAddend<A> addend;
      if (p > 0) addend = {to, sums.ld};
      if constexpr (!converts) {
        if (p == 0 && g.accumulate) addend = {to, sums.ld};
        if (p == 0 && g.bias) addend = {static_cast<const A*>(g.bias) + first + j, 0};
        if (const std::int64_t valid = column + columns - j; valid < width) {
          last_columns(here, valid, width, left, right, addend, to);
          continue;
        }
      }
      tile_panel<A>(here, width / kLanes<A>, k, left, right, addend, to, sums.ld, ahead(i, j));
    }
  }

  // Whole vectors would write beyond the row.
  void last_columns(std::int64_t here, std::int64_t valid, std::int64_t width, const TileA<A>& left,
                    const TileB<A>& right, const TileAddend<A>& addend, A* to) const {
    A tile[kBlockRows * kPanel<A>];
    tile_panel<A>(here, width / kLanes<A>, k, left, right, {}, tile, width, {tile, 0});
    for (std::int64_t r = 0; r < here; ++r)
      for (std::int64_t j = 0; j < valid; ++j)
        to[r * sums.ld + j] = (addend.data ? addend.data[r * addend.ld + j] : A{}) + tile[r * width + j];
  }

  // The one rounding of a result that is no accumulator.
  void write_back() const {
    const R* const bias = g.bias ? static_cast<const R*>(g.bias) + first + column : nullptr;
    for (std::int64_t i = row; i < row + rows; ++i) {
      A* const sum = sums.at(i, column);
      R* const to = c + i * g.ldc + column;
      if (const R* const addend = g.accumulate ? to : bias)
        for (std::int64_t j = 0; j < columns; ++j) sum[j] = convert<A>(addend[j]) + sum[j];
      convert_row(sum, columns, to);
    }
  }

  void run() const {
    if (g.transpose_a) pack_a();
    for (std::int64_t i = 0; i < rows; i += kBlockRows) block(i, std::min<std::int64_t>(kBlockRows, rows - i));
    if (p + k < g.k) return;
    if constexpr (converts) write_back();
    if (g.epilogue) (*g.epilogue)(row, rows, first + column, columns);
  }
};

template <class T, class R>
void blocked(const Gemm& g, const T* a, const T* b, R* c) {
  using A = Accumulator<T>;
  constexpr bool converts = Piece<T, R>::converts;
  std::int64_t piece_rows = kPieceRows;
  while (piece_rows > kPieceRows / 4 && num_chunks(g.m, piece_rows) < kMinPieces) piece_rows /= 2;
  // Narrow blocks stay near: wide ones would be read from beyond the second-level cache.
  const std::int64_t wide = num_chunks(g.m, piece_rows) < kMinPieces ? kMaxAcross * kPieceColumns : kPieceColumns;
  for (std::int64_t first = 0; first < g.n; first += wide) {
    const std::int64_t n = std::min(wide, g.n - first), across = num_chunks(n, kPieceColumns);
    const std::int64_t ld = round_up(n, kLanes<A>);
    const bool in_piece = converts && g.k <= kBlockK, in_rows = converts && !in_piece;
    const std::int64_t start_rows = in_rows ? kSums / ld / kPieceRows * kPieceRows : g.m;
    for (std::int64_t start = 0; start < g.m; start += start_rows) {
      const std::int64_t m = std::min(start_rows, g.m - start), down = num_chunks(m, piece_rows);
      Sums<A> sums{nullptr, ld, start, 0};
      if (in_rows) sums.data = thread_workspace<A>(WorkspaceUse::gemm_sums, m * ld);
      if constexpr (!converts) sums = {c + start * g.ldc + first, g.ldc, start, 0};
      const std::int64_t block_k = num_chunks(g.k, num_chunks(g.k, kBlockK));  // even ones
      for (std::int64_t p = 0; p < g.k; p += block_k) {
        const std::int64_t k = std::min(block_k, g.k - p);
        const PackedB<A> packed = pack_block<A>(g, b, p, k, first, n);
        const std::int64_t grain = kTaskFlops / (2 * piece_rows * std::min(n, kPieceColumns) * k);
        parallel_for(down * across, grain, [&](std::int64_t begin, std::int64_t end) {
          constexpr std::int64_t packed_size = Piece<T, R>::kPackedA;
          const std::int64_t sums_size = in_piece ? kPieceRows * kPieceColumns : 0;
          A* const packed_a = thread_workspace<A>(WorkspaceUse::gemm_panels, packed_size + sums_size);
          for (std::int64_t task = begin; task < end; ++task) {
            const std::int64_t row = task % down * piece_rows, column = task / down * kPieceColumns;
            Piece<T, R>{.g = g,
                        .a = a,
                        .b = packed,
                        .c = c + first,
                        .sums = in_piece ? Sums<A>{packed_a + packed_size, kPieceColumns, start + row, column} : sums,
                        .first = first,
                        .row = start + row,
                        .rows = std::min(piece_rows, m - row),
                        .column = column,
                        .columns = std::min(kPieceColumns, n - column),
                        .p = p,
                        .k = k,
                        .packed_a = packed_a}
                .run();
          }
        });
      }
    }
  }
}

}  // namespace

void gemm_blocked(const Gemm& g, const void* a, const void* b, void* c) {
  if (gemm_few_rows(g, a, b, c)) return;
  visit_floating(g.dtype, [&]<class T>(Type<T>) {
    const T* ta = static_cast<const T*>(a);
    const T* tb = static_cast<const T*>(b);
    if (g.result == g.dtype) return blocked(g, ta, tb, static_cast<T*>(c));
    if constexpr (sizeof(T) == 2)
      if (g.result == DType::f32) return blocked(g, ta, tb, static_cast<float*>(c));
    fail("a product of {} cannot be stored as {}", name(g.dtype), name(g.result));
  });
}

}  // namespace sherd::cpu
