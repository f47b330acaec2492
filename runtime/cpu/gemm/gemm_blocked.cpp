// Our own matrix product, after Goto and van de Geijn, "Anatomy of high-performance matrix multiplication" (2008), with
// the loops of a machine whose second-level cache is large: a few rows of A stay in the first level while a block of B
// streams past them from the second.
//
//   a block of B:  kBlockSteps x kPieceColumns, or a few times that; packed into panels of kPanel columns
//   (gemm_pack.h),
//                  shared by all pieces
//   pieces of C:   kPieceRows x kPieceColumns, in parallel; their part of the block of B stays in the second-level
//                  cache
//   in a piece:    kBlockRows rows of A at a time, as they lie in memory where their elements need no packing, else
//                  packed; each meets every panel of B in registers, while the rows of A after it come from memory
//
// A sum is built in the same order whatever the pieces: products of a block of K in order, blocks in order.
#include "runtime/cpu/gemm/gemm_few_rows.h"
#include "runtime/cpu/gemm/gemm_pack.h"

namespace sherd::cpu {

namespace {

constexpr std::int64_t kLine = 64;  // bytes of a cache line
constexpr std::int64_t kBlockSteps = kVecBytes == 64 ? 384 : 256;
constexpr std::int64_t kPieceColumns = kVecBytes == 64 ? 384 : 192;
constexpr std::int64_t kPieceRows = 8 * kBlockRows;
constexpr std::int64_t kMinPieces = 12;       // beside a block of B, or their rows are halved, twice at most,
constexpr std::int64_t kMaxAcross = 4;        // and if that is not enough, so many lie side by side
constexpr std::int64_t kSums = 1 << 20;       // elements of C that wait in a buffer for their one rounding
constexpr std::int64_t kTaskFlops = 1 << 22;  // at least, or tasks cost more than they spread

// Where sums wait for the next block of K: in C itself if it holds accumulators, else in a buffer of some rows of C.
template <class A>
struct Sums {
  A* data;
  std::int64_t ld, row;  // of the first element: row of the problem, column 0 of the packed ones
  A* at(std::int64_t i, std::int64_t j) const { return data + (i - row) * ld + j; }
};

// A whole vector of sums to C, after C's own elements or the bias were added.
template <class R, class A>
[[gnu::always_inline]] inline void store_sums(Vec<A> sums, const R* addend, R* to) {
  if (addend) sums = load_as_accumulators(addend) + sums;
  if constexpr (std::is_same_v<R, bf16>) {
    const HalfWords rounded = product_to_bf16(sums);
    std::memcpy(static_cast<void*>(to), &rounded, sizeof rounded);
  } else {
    store_rounded(to, sums);
  }
}

// A rectangle of C within the packed columns, and one block of K.
template <class T, class R>
struct Piece {
  using A = Accumulator<T>;
  using P = Packed<T>;
  static constexpr bool converts = !std::is_same_v<R, A>;
  // Between panels of a transposed A: a cache line more than they hold, or all of them would fall into one set.
  static constexpr std::int64_t kPanelA = kBlockRows * kBlockSteps + kLine / static_cast<std::int64_t>(sizeof(P));
  static constexpr std::int64_t kPackedA = kPieceRows / kBlockRows * kPanelA;

  const Gemm& g;
  const T* a;
  PackedB<T> b;
  R* c;  // of column `first` of the problem
  Sums<A> sums;
  std::int64_t first;                       // where the packed columns start
  std::int64_t row, rows, column, columns;  // rows of the problem, columns of the packed ones
  std::int64_t p, k;                        // products [p, p + k)
  P* packed_a;                              // [kPackedA]
  std::int64_t steps = steps_of<T>(k);

  // Step q of a transposed A is `whole` unless K is odd and ends in it.
  bool whole(std::int64_t q) const { return (q + 1) * kTogether<T> <= k; }
  const T* stored_row(std::int64_t q) const { return a + row + g.lda * (p + q * kTogether<T>); }

  // Transposed rows of A as panels [steps, kBlockRows].
  void pack_a() const {
    std::int64_t q = 0;
    if constexpr (kLanes<P> == 2 * kBlockRows)
      if (rows % kLanes<P> == 0) q = pack_two_steps(std::make_integer_sequence<int, kBlockRows>{});
    for (; q < steps; ++q) {
      const T* const from = stored_row(q);
      P* to = packed_a + q * kBlockRows;
      std::int64_t i = 0;
      for (; i + kBlockRows <= rows; i += kBlockRows, to += kPanelA)
        pack_step(from + i, g.lda, whole(q), kBlockRows, to);
      pack_step(from + i, g.lda, whole(q), rows - i, to);
    }
  }

  // Two steps of two panels at a time: whole vectors. How many it has packed.
  template <int... L>
  std::int64_t pack_two_steps(std::integer_sequence<int, L...>) const {
    std::int64_t q = 0;
    for (; q + 1 < steps; q += 2) {
      const T *const one = stored_row(q), *const two = stored_row(q + 1);
      const bool two_whole = whole(q + 1);
      P* to = packed_a + q * kBlockRows;
      for (std::int64_t i = 0; i < rows; i += kLanes<P>, to += 2 * kPanelA) {
        const Vec<P> x = load_step(one + i, g.lda, true), y = load_step(two + i, g.lda, two_whole);
        store<P>(to, __builtin_shufflevector(x, y, L..., (kLanes<P> + L)...));
        store<P>(to + kPanelA, __builtin_shufflevector(x, y, (kBlockRows + L)..., (kLanes<P> + kBlockRows + L)...));
      }
    }
    return q;
  }

  // kBlockRows rows (or what is left) from `i` on.
  TileA<P> rows_of_a(std::int64_t i, std::int64_t here) const {
    if (g.transpose_a) return {packed_a + i / kBlockRows * kPanelA, 1, kBlockRows};
    const T* from = a + (row + i) * g.lda + p;
    if (std::is_same_v<T, P> || (kTogether<T> == 2 && g.lda % 2 == 0 && k % 2 == 0))
      return {reinterpret_cast<const P*>(from), g.lda / kTogether<T>, 1};
    for (std::int64_t r = 0; r < here; ++r) pack_along(from + r * g.lda, k, packed_a + r * steps);
    return {packed_a, steps, 1};
  }

  // What the rows from `i` on, at the panel of column j, ask for: a row of the next ones, or of a transposed A a run of
  // lines of what the next piece will pack.
  TileAhead ahead(std::int64_t i, std::int64_t j) const {
    constexpr auto bytes = static_cast<std::int64_t>(sizeof(T));
    const std::int64_t panel = (j - column) / kPanel<T>, next = row + i + kBlockRows + panel;
    const TileAhead nothing{b.data, 0};
    if (!g.transpose_a) {
      if (next >= g.m || panel >= kBlockRows) return nothing;
      return {a + next * g.lda + p, kAheadSteps * kTogether<T> * bytes};
    }
    const std::int64_t lines = std::max<std::int64_t>(rows * bytes / kLine, 1), run = num_chunks(steps, kAheadSteps);
    const std::int64_t block = i / kBlockRows * num_chunks(columns, kPanel<T>) + panel, q = block / lines * run;
    if (row + rows >= g.m || q >= k) return nothing;
    return {a + (p + q) * g.lda + row + rows + block % lines * (kLine / bytes), g.lda * bytes};
  }

  // The rows from `i` on times all panels. The first block of K starts with C or the bias.
  void block(std::int64_t i, std::int64_t here) const {
    const TileA<P> left = rows_of_a(i, here);
    for (std::int64_t j = column; j < column + columns; j += kPanel<T>) {
      const std::int64_t width = std::min(kPanel<T>, b.columns - j), valid = std::min(width, column + columns - j);
      const TileB<P> right{b.data + j * steps, width, true};
      TileAddend<A> addend;
      if (p > 0) addend = {sums.at(row + i, j), sums.ld};
      if constexpr (converts) {
        if (p + k == g.k) {
          last_block(i, here, j, valid, left, right, addend);
          continue;
        }
      } else {
        if (p == 0 && g.accumulate) addend = {sums.at(row + i, j), sums.ld};
        if (p == 0 && g.bias) addend = {static_cast<const A*>(g.bias) + first + j, 0};
        if (valid < width) {
          last_columns(here, valid, left, right, addend, sums.at(row + i, j));
          continue;
        }
      }
      tile_panel<P>(here, width / kLanes<A>, steps, left, right, addend, sums.at(row + i, j), sums.ld, ahead(i, j));
    }
  }

  // The one rounding of a result that is no accumulator.
  void last_block(std::int64_t i, std::int64_t here, std::int64_t j, std::int64_t valid, const TileA<P>& left,
                  const TileB<P>& right, const TileAddend<A>& addend) const {
    A tile[kBlockRows * kPanel<T>];
    tile_panel<P>(here, right.ld / kLanes<A>, steps, left, right, addend, tile, right.ld, ahead(i, j));
    const R* const bias = g.bias ? static_cast<const R*>(g.bias) + first + j : nullptr;
    for (std::int64_t r = 0; r < here; ++r) {
      const A* const sum = tile + r * right.ld;
      R* const to = c + (row + i + r) * g.ldc + j;
      const R* const more = g.accumulate ? to : bias;
      std::int64_t l = 0;
      for (; l + kLanes<A> <= valid; l += kLanes<A>) store_sums<R, A>(load(sum + l), more ? more + l : nullptr, to + l);
      if (l == valid) continue;
      R part[kLanes<A>]{};  // a vector's worth, by the same instructions
      if (more) std::copy(more + l, more + valid, part);
      store_sums<R, A>(load(sum + l), more ? part : nullptr, part);
      std::copy_n(part, valid - l, to + l);
    }
  }

  // Whole vectors would write beyond the row.
  void last_columns(std::int64_t here, std::int64_t valid, const TileA<P>& left, const TileB<P>& right,
                    const TileAddend<A>& addend, A* to) const {
    A tile[kBlockRows * kPanel<T>];
    tile_panel<P>(here, right.ld / kLanes<A>, steps, left, right, {}, tile, right.ld, {tile, 0});
    for (std::int64_t r = 0; r < here; ++r)
      for (std::int64_t j = 0; j < valid; ++j)
        to[r * sums.ld + j] = (addend.data ? addend.data[r * addend.ld + j] : A{}) + tile[r * right.ld + j];
  }

  void run() const {
    if (g.transpose_a) pack_a();
    for (std::int64_t i = 0; i < rows; i += kBlockRows) block(i, std::min<std::int64_t>(kBlockRows, rows - i));
    if (p + k == g.k && g.epilogue) (*g.epilogue)(row, rows, first + column, columns);
  }
};

template <class T, class R>
void blocked(const Gemm& g, const T* a, const T* b, R* c) {
  using A = Accumulator<T>;
  using P = Packed<T>;
  std::int64_t piece_rows = kPieceRows;
  while (piece_rows > kPieceRows / 4 && num_chunks(g.m, piece_rows) < kMinPieces) piece_rows /= 2;
  // Narrow blocks stay near: wide ones would be read from beyond the second-level cache.
  const std::int64_t wide = num_chunks(g.m, piece_rows) < kMinPieces ? kMaxAcross * kPieceColumns : kPieceColumns;
  // Blocks of K of even size, of whole pairs of steps.
  const std::int64_t blocks = num_chunks(g.k, kBlockSteps * kTogether<T>);
  const std::int64_t block_k = round_up(num_chunks(g.k, blocks), 2 * kTogether<T>);
  for (std::int64_t first = 0; first < g.n; first += wide) {
    const std::int64_t n = std::min(wide, g.n - first), across = num_chunks(n, kPieceColumns);
    const std::int64_t ld = round_up(n, kLanes<A>);
    const bool sums_wait = Piece<T, R>::converts && blocks > 1;
    const std::int64_t start_rows = sums_wait ? kSums / ld / kPieceRows * kPieceRows : g.m;
    for (std::int64_t start = 0; start < g.m; start += start_rows) {
      const std::int64_t m = std::min(start_rows, g.m - start), down = num_chunks(m, piece_rows);
      Sums<A> sums{nullptr, ld, start};
      if (sums_wait) sums.data = thread_workspace<A>(WorkspaceUse::gemm_sums, m * ld);
      if constexpr (!Piece<T, R>::converts) sums = {c + start * g.ldc + first, g.ldc, start};
      for (std::int64_t p = 0; p < g.k; p += block_k) {
        const std::int64_t k = std::min(block_k, g.k - p);
        const PackedB<T> packed = pack_block(g, b, p, k, first, n);
        const std::int64_t grain = kTaskFlops / (2 * piece_rows * std::min(n, kPieceColumns) * k);
        parallel_for(down * across, grain, [&](std::int64_t begin, std::int64_t end) {
          P* const packed_a = thread_workspace<P>(WorkspaceUse::gemm_panels, Piece<T, R>::kPackedA);
          for (std::int64_t task = begin; task < end; ++task) {
            const std::int64_t row = task % down * piece_rows, column = task / down * kPieceColumns;
            Piece<T, R>{.g = g,
                        .a = a,
                        .b = packed,
                        .c = c + first,
                        .sums = sums,
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
