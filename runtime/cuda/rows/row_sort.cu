// A stable radix sort of (row, position) pairs, nine bits a pass, so that vocabularies to 262,143 rows take two passes.
// A pass counts the digits of every block's stretch, scans the counts, and moves the pairs; within a block, warps own
// consecutive stretches and lanes of equal digits find their order by ballots. Nothing depends on timing.
#include "runtime/cuda/rows/row_sort.h"

#include <bit>

#include "runtime/cuda/device/launch.h"
#include "runtime/cuda/rows/bits.h"

namespace sherd::cuda {

namespace {

constexpr int kSortBits = 9, kSortDigits = 1 << kSortBits;
constexpr int kSortThreads = 256, kWarps = kSortThreads / kWarp;
constexpr int kRounds = 8;  // pairs of a lane
constexpr int kPerWarp = kRounds * kWarp, kPerBlock = kWarps * kPerWarp;

struct Pairs {
  std::uint32_t *rows, *positions;
};

// An id that names no row sorts behind all rows.
__global__ void load_pairs(const void* ids, bool wide, std::uint32_t count, IdShard rows, Pairs out, FaultSink faults) {
  for (std::int64_t i = grid_thread(); i < count; i += grid_threads()) {
    const std::int64_t id = read_id(ids, wide, i);
    if (!rows.exists(id)) report_fault(faults, i, id, rows.total);
    out.rows[i] = static_cast<std::uint32_t>(rows.is_here(id) ? id - rows.first : rows.here);
    out.positions[i] = static_cast<std::uint32_t>(i);
  }
}

struct DigitCounts {
  std::uint32_t of[kWarps][kSortDigits];
};

// Each warp's count of each digit in its stretch of the block.
__device__ void count_digits(const std::uint32_t* rows, std::uint32_t count, int shift, DigitCounts& counts) {
  for (int i = thread_index(); i < kWarps * kSortDigits; i += kSortThreads)
    counts.of[i / kSortDigits][i % kSortDigits] = 0;
  sync_block();
  const std::uint32_t first = static_cast<std::uint32_t>(block_index()) * kPerBlock +
                              static_cast<std::uint32_t>(warp_index()) * kPerWarp + static_cast<std::uint32_t>(lane());
  for (int round = 0; round < kRounds; ++round) {
    const std::uint32_t i = first + static_cast<std::uint32_t>(round) * kWarp;
    if (i < count) atomic_add(&counts.of[warp_index()][rows[i] >> shift & (kSortDigits - 1)], 1u);
  }
  sync_block();
}

// totals[digit * blocks + block]
__global__ void count_kernel(const std::uint32_t* rows, std::uint32_t count, int shift, std::uint32_t* totals) {
  auto& counts = shared<DigitCounts>();
  count_digits(rows, count, shift, counts);
  for (int digit = thread_index(); digit < kSortDigits; digit += kSortThreads) {
    std::uint32_t total = 0;
    for (int w = 0; w < kWarps; ++w) total += counts.of[w][digit];
    totals[digit * grid_blocks() + block_index()] = total;
  }
}

struct ScanScratch {
  std::uint32_t sums[kWarps];
};

// An exclusive sum in place, by one block: each thread a stretch.
__global__ void scan_kernel(std::uint32_t* values, std::uint32_t count) {
  auto& scratch = shared<ScanScratch>();
  const std::uint32_t each = (count + kSortThreads - 1) / kSortThreads;
  const std::uint32_t begin = each * static_cast<std::uint32_t>(thread_index());
  const std::uint32_t end = begin + each < count ? begin + each : count;
  std::uint32_t sum = 0;
  for (std::uint32_t i = begin; i < end; ++i) sum += values[i];
  std::uint32_t up_to = sum;  // inclusive, over the lanes
  for (int apart = 1; apart < kWarp; apart *= 2) {
    const std::uint32_t other = shuffle(up_to, lane() >= apart ? lane() - apart : lane());
    if (lane() >= apart) up_to += other;
  }
  if (lane() == kWarp - 1) scratch.sums[warp_index()] = up_to;
  sync_block();
  std::uint32_t before = up_to - sum;
  for (int w = 0; w < warp_index(); ++w) before += scratch.sums[w];
  for (std::uint32_t i = begin; i < end; ++i) {
    const std::uint32_t value = values[i];
    values[i] = before;
    before += value;
  }
}

__global__ void move_kernel(Pairs from, Pairs to, std::uint32_t count, int shift, const std::uint32_t* totals) {
  auto& counts = shared<DigitCounts>();
  count_digits(from.rows, count, shift, counts);
  for (int digit = thread_index(); digit < kSortDigits; digit += kSortThreads) {  // counts become places
    std::uint32_t place = totals[digit * grid_blocks() + block_index()];
    for (int w = 0; w < kWarps; ++w) {
      const std::uint32_t here = counts.of[w][digit];
      counts.of[w][digit] = place;
      place += here;
    }
  }
  sync_block();
  const std::uint32_t first = static_cast<std::uint32_t>(block_index()) * kPerBlock +
                              static_cast<std::uint32_t>(warp_index()) * kPerWarp + static_cast<std::uint32_t>(lane());
  for (int round = 0; round < kRounds; ++round) {
    const std::uint32_t i = first + static_cast<std::uint32_t>(round) * kWarp;
    const bool present = i < count;
    const std::uint32_t row = present ? from.rows[i] : 0;
    const std::uint32_t digit = row >> shift & (kSortDigits - 1);
    std::uint32_t equals = ballot(present);  // lanes with this lane's digit
    for (int bit = 0; bit < kSortBits; ++bit) {
      const bool set = (digit >> bit & 1) != 0;
      const std::uint32_t lanes = ballot(set);
      equals &= set ? lanes : ~lanes;
    }
    const std::uint32_t before = count_before(equals);
    std::uint32_t* const next = &counts.of[warp_index()][digit];
    const std::uint32_t place = present ? *next + before : 0;
    sync_warp();
    if (present && before == 0) *next += count_bits(equals);
    sync_warp();
    if (!present) continue;
    to.rows[place] = row;
    to.positions[place] = from.positions[i];
  }
}

// starts[r]: the first place whose row is not below r.
__global__ void find_starts(const std::uint32_t* rows, std::uint32_t count, std::uint32_t* starts, std::int64_t num) {
  for (std::int64_t r = grid_thread(); r < num; r += grid_threads()) {
    std::uint32_t low = 0, high = count;
    while (low < high) {
      const std::uint32_t middle = low + (high - low) / 2;
      if (rows[middle] < r) low = middle + 1;
      else high = middle;
    }
    starts[r] = low;
  }
}

std::int64_t sort_blocks(std::int64_t count) { return (count + kPerBlock - 1) / kPerBlock; }

std::int64_t words_of(std::int64_t count, std::int64_t rows) {
  constexpr std::int64_t kLimit = std::int64_t{1} << 31;
  check(count < kLimit && rows < kLimit, "{} indices into {} rows: kernels take fewer than 2^31 of each", count, rows);
  return rows + 1 + 4 * count + kSortDigits * sort_blocks(count);
}

}  // namespace

RowSort::RowSort(Context& context, const void* ids, DType dtype, std::int64_t count, const IdShard& ids_of_rows,
                 const FaultSink& faults)
    : memory_(context, words_of(count, ids_of_rows.here) * static_cast<std::int64_t>(sizeof(std::uint32_t))) {
  const cudaStream_t stream = context.stream();
  const std::int64_t rows = ids_of_rows.here;
  starts_ = memory_.as<std::uint32_t>();
  std::uint32_t* const pairs = starts_ + rows + 1;
  Pairs from{pairs, pairs + count}, to{pairs + 2 * count, pairs + 3 * count};
  std::uint32_t* const totals = pairs + 4 * count;
  const auto n = static_cast<std::uint32_t>(count);
  const auto blocks = static_cast<unsigned>(sort_blocks(count));
  launch(stream, load_pairs, {.blocks = blocks_for(count, 256)}, ids, dtype == DType::i64, n, ids_of_rows, from,
         faults);
  const int bits = static_cast<int>(std::bit_width(static_cast<std::uint64_t>(rows)));
  for (int shift = 0; count > 0 && shift < bits; shift += kSortBits) {
    const Grid grid{.blocks = blocks, .threads = kSortThreads, .shared_bytes = sizeof(DigitCounts)};
    launch(stream, count_kernel, grid, from.rows, n, shift, totals);
    launch(stream, scan_kernel, {.threads = kSortThreads, .shared_bytes = sizeof(ScanScratch)}, totals,
           kSortDigits * blocks);
    launch(stream, move_kernel, grid, from, to, n, shift, totals);
    std::swap(from, to);
  }
  launch(stream, find_starts, {.blocks = blocks_for(rows + 1, 256)}, from.rows, n, starts_, rows + 1);
  positions_ = from.positions;
}

}  // namespace sherd::cuda
