// Random rows from Philox4x32-10 (op/philox.h). Element i lies in block i / 4, word i % 4; the counter is {block low,
// block high, step low, step high}. Whole blocks are always drawn, a lane per block, and the words that were not asked
// for are dropped: one code path, so a value has the same bits whatever range it is drawn in. A normal pair uses words
// (0, 1) or (2, 3) of one block (Box and Muller 1958).
#include <algorithm>
#include <bit>

#include "runtime/cpu/kernels.h"
#include "runtime/cpu/math.h"
#include "runtime/cpu/parallel.h"
#include "runtime/cpu/tile.h"
#include "runtime/op/rows/element_runs.h"
#include "runtime/op/rows/philox.h"
#include "runtime/op/rows/random_attrs.h"

namespace sherd::cpu {

namespace {

constexpr std::int64_t kBlocks = kTile / 4;  // blocks drawn at a time
constexpr std::int64_t kGrain = 64 * kTile;  // elements per chunk
constexpr std::int64_t kDrawn = kTile;       // elements drawn at a time

struct Stream {
  std::uint64_t key, step;
};

Stream stream_of(std::uint64_t key, std::span<const Tensor> in, std::size_t step_input) {
  std::uint64_t step = 0;
  if (step_input < in.size() && in[step_input].defined())
    step = static_cast<std::uint64_t>(*in[step_input].data<std::int64_t>());
  return {key, step};
}

std::uint32_t low(std::uint64_t x) { return static_cast<std::uint32_t>(x); }
std::uint32_t high(std::uint64_t x) { return static_cast<std::uint32_t>(x >> 32); }

// The words of these blocks as four rows of kBlocks.
void draw_words(const Stream& stream, const std::uint64_t (&blocks)[kBlocks], std::uint32_t (&words)[4][kBlocks]) {
  for (std::int64_t i = 0; i < kBlocks; ++i) {
    const std::uint64_t block = blocks[i];
    const auto word =
        philox4x32({low(block), high(block), low(stream.step), high(stream.step)}, {low(stream.key), high(stream.key)});
    for (std::size_t w = 0; w < 4; ++w) words[w][i] = word[w];
  }
}

/// [0, 1), 24 bits.
float unit(std::uint32_t word) { return static_cast<float>(static_cast<std::int32_t>(word >> 8)) * 0x1p-24f; }

struct Uniform {
  float low, high;
  // Rounding of low + u (high - low) may reach `high`; the interval is half open.
  void operator()(const std::uint32_t (&words)[4][kBlocks], float (&values)[4][kBlocks]) const {
    const float below = std::nextafter(high, low);
    for (std::size_t w = 0; w < 4; ++w)
      for (std::int64_t i = 0; i < kBlocks; ++i) {
        const float x = std::fma(unit(words[w][i]), high - low, low);
        values[w][i] = x < high ? x : below;
      }
  }
};

struct Normal {
  float mean, std;
  void operator()(const std::uint32_t (&words)[4][kBlocks], float (&values)[4][kBlocks]) const {
    for (std::size_t w = 0; w < 4; w += 2)
      for (std::int64_t i = 0; i < kBlocks; ++i) {
        const float u = unit(words[w][i]) + 0x1p-24f;  // (0, 1]: the logarithm is finite
        const float angle = unit(words[w + 1][i]);
        const float radius = std::sqrt(-2.0f * Math::log(u));
        values[w][i] = std::fma(radius * Math::cos_turns(angle), std, mean);
        values[w + 1][i] = std::fma(radius * Math::sin_turns(angle), std, mean);
      }
  }
};

/// Which elements of the whole a call draws.
struct Part {
  std::int64_t first;
  ElementRuns runs;
};

/// Calls fn(offset, values, count) with the drawn values of the part's elements begin, ..., end - 1.
template <class Transform, class Fn>
void for_each_drawn(const Stream& stream, const Transform& transform, const Part& part, std::int64_t begin,
                    std::int64_t end, const Fn& fn) {
  std::uint64_t blocks[kBlocks] = {};
  std::uint32_t words[4][kBlocks];
  float rows[4][kBlocks], values[kDrawn];
  struct Piece {
    std::int64_t from, count;  // of the drawn values
  };
  Piece pieces[kBlocks];
  RunCursor cursor(part.first, part.runs, begin);
  std::int64_t at = begin;
  while (at < end) {
    // Pieces of runs, as many as the blocks hold.
    std::int64_t used = 0, count = 0, num_pieces = 0;
    while (used < kBlocks && at + count < end) {
      const std::int64_t block = cursor.place() / 4, skip = cursor.place() % 4;
      const std::int64_t n = std::min({end - at - count, cursor.left(), 4 * (kBlocks - used) - skip});
      pieces[num_pieces++] = {4 * used + skip, n};
      for (const std::int64_t last = used + (skip + n + 3) / 4, base = block - used; used < last; ++used)
        blocks[used] = static_cast<std::uint64_t>(base + used);
      count += n;
      cursor.advance(n);
    }
    draw_words(stream, blocks, words);
    transform(words, rows);
    for (std::int64_t i = 0; i < kBlocks; ++i)
      for (std::int64_t w = 0; w < 4; ++w) values[4 * i + w] = rows[w][i];
    const std::int64_t start = pieces[0].from;
    float* to = values + start + pieces[0].count;
    for (std::int64_t p = 1; p < num_pieces; ++p)
      to = std::copy_n(values + pieces[p].from, pieces[p].count, to);  // forwards: pieces only move down
    fn(at, values + start, count);
    at += count;
  }
}

template <class Transform>
void draw(const KernelCall& call) {
  const auto& attrs = call.attrs.as<RandomAttrs>();
  const Tensor& out = call.out[0];
  const Stream stream = stream_of(attrs.key, call.in, 0);
  const Transform transform{attrs.a, attrs.b};
  parallel_for(out.numel(), kGrain, [&](std::int64_t begin, std::int64_t end) {
    for_each_drawn(stream, transform, {attrs.first, attrs.runs}, begin, end,
                   [&](std::int64_t at, const float* values, std::int64_t n) {
                     write_tile(out.raw(), out.dtype(), at, values, n);
                   });
  });
}

void dropout(const KernelCall& call) {
  const auto& attrs = call.attrs.as<DropoutAttrs>();
  const Tensor& x = call.in[0];
  const Tensor& out = call.out[0];
  if (out.numel() == 0) return;
  const Stream stream = stream_of(attrs.stream_key(), call.in, 1);
  const float p = attrs.p;
  visit_compute(x.dtype(), [&]<class C>(Type<C>) {
    const TileReader<C> reader(x, out.shape());
    const C scale = p < 1 ? C{1} / (C{1} - static_cast<C>(p)) : C{0};
    parallel_for(out.numel(), kGrain, [&](std::int64_t begin, std::int64_t end) {
      C buffer[kDrawn], kept[kDrawn];
      for_each_drawn(stream, Uniform{0, 1}, {attrs.first, attrs.runs}, begin, end,
                     [&](std::int64_t at, const float* values, std::int64_t n) {
                       const C* in = reader.read(at, n, buffer);
                       for (std::int64_t i = 0; i < n; ++i) kept[i] = values[i] >= p ? in[i] * scale : C{0};
                       write_tile(out.raw(), out.dtype(), at, kept, n);
                     });
    });
  });
}

}  // namespace

void register_random(OpTable& table) {
  using enum Device::Kind;
  table.kernel(op::random_normal, cpu, draw<Normal>);
  table.kernel(op::random_uniform, cpu, draw<Uniform>);
  table.kernel(op::dropout, cpu, dropout);
}

}  // namespace sherd::cpu
