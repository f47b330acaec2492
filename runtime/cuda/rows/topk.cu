// The k largest of each line along a dim, a block per line. Values become unsigned keys that order as they do:
//
//   1  the k-th largest key, eight bits at a time from the top: count the digits of the keys that still match
//   2  what lies above it, and the first that equal it, in the line's order
//   3  these k in order: each counts those before it; more than kRanked by a stable radix sort of one bit a pass
//
// A long line is cut into parts for a block each, and what they find, part after part, is the line of one more block:
// of equals the first still comes first. Counts are integers, so nothing depends on timing. Bytes: the line five times
// (nine for 64 bits), from the cache where it fits.
#include <bit>

#include "runtime/cuda/device/context.h"
#include "runtime/cuda/device/launch.h"
#include "runtime/cuda/kernels.h"
#include "runtime/cuda/rows/bits.h"
#include "runtime/cuda/rows/reduce_plan.h"
#include "runtime/op/rows/gather.h"

namespace sherd::cuda {

namespace {

constexpr int kMostThreads = 512;
constexpr std::uint32_t kRanked = 1024;
constexpr int kDigitBits = 8, kDigits = 1 << kDigitBits;

template <class T>
using Key = std::conditional_t<sizeof(T) == 8, std::uint64_t, std::uint32_t>;

/// Orders as x does; NaN above all, 0 and -0 equal.
template <class T>
__device__ Key<T> key_of(T x) {
  constexpr Key<T> kTop = Key<T>{1} << (8 * sizeof(Key<T>) - 1);
  if constexpr (std::is_integral_v<T>) {
    return static_cast<Key<T>>(static_cast<std::make_signed_t<Key<T>>>(x)) ^ kTop;
  } else {
    const Compute<T> value = to_compute(x);
    if (value != value) return ~Key<T>{0};
    const auto bits = std::bit_cast<Key<T>>(value == 0 ? Compute<T>{0} : value);
    return bits & kTop ? ~bits : bits | kTop;
  }
}

struct Scratch {
  std::uint32_t counts[kDigits];
  std::uint32_t warps[kMostThreads / kWarp];
  std::uint32_t sums[kWarp];
  std::uint32_t digit, left;
};

/// How many threads before this one, and how many in the block, have one of two flags.
struct Ranks {
  std::uint32_t a, b, all_a, all_b;
};
__device__ Ranks rank_flags(bool a, bool b, Scratch& scratch) {
  const std::uint32_t lanes_a = ballot(a), lanes_b = ballot(b);
  if (lane() == 0) scratch.warps[warp_index()] = count_bits(lanes_a) | count_bits(lanes_b) << 16;
  sync_block();
  std::uint32_t before = 0, all = 0;
  for (int w = 0; w < block_warps(); ++w) {
    if (w == warp_index()) before = all;
    all += scratch.warps[w];
  }
  sync_block();
  return {(before & 0xffffu) + count_before(lanes_a), (before >> 16) + count_before(lanes_b), all & 0xffffu, all >> 16};
}

/// By one warp: the digit, counted from the largest, in which the left-th key lies, and what is left within it.
__device__ void pick_digit(Scratch& scratch, std::uint32_t left) {
  constexpr int kEach = kDigits / kWarp;
  const int first = kDigits - 1 - lane() * kEach;
  std::uint32_t own = 0;
  for (int i = 0; i < kEach; ++i) own += scratch.counts[first - i];
  std::uint32_t up_to = own;  // inclusive, over the lanes
  for (int apart = 1; apart < kWarp; apart *= 2) {
    const std::uint32_t other = shuffle(up_to, lane() >= apart ? lane() - apart : lane());
    if (lane() >= apart) up_to += other;
  }
  if (left > up_to || left <= up_to - own) return;
  left -= up_to - own;
  int digit = first;
  while (left > scratch.counts[digit]) left -= scratch.counts[digit--];
  scratch.digit = static_cast<std::uint32_t>(digit);
  scratch.left = left;
}

template <class T>
struct Line {
  const T* x;
  std::int64_t step;
  std::uint32_t n;
  __device__ Key<T> key(std::uint32_t i) const { return key_of(x[i * step]); }
};

/// The k-th largest key; `left` of those that equal it belong to the k largest.
template <class T>
__device__ Key<T> find_threshold(const Line<T>& line, std::uint32_t k, std::uint32_t& left, Scratch& scratch) {
  constexpr int kBits = 8 * sizeof(Key<T>);
  const auto threads = static_cast<std::uint32_t>(block_threads()), me = static_cast<std::uint32_t>(thread_index());
  Key<T> threshold = 0;
  left = k;
  for (int shift = kBits - kDigitBits; shift >= 0; shift -= kDigitBits) {
    for (std::uint32_t i = me; i < kDigits; i += threads) scratch.counts[i] = 0;
    sync_block();
    const int known = shift + kDigitBits;  // bits below which nothing is known
    for (std::uint32_t i = me; i < line.n; i += threads) {
      const Key<T> key = line.key(i);
      if (known == kBits || key >> (known % kBits) == threshold >> (known % kBits))
        atomic_add(&scratch.counts[key >> shift & (kDigits - 1)], 1u);
    }
    sync_block();
    if (warp_index() == 0) pick_digit(scratch, left);
    sync_block();
    threshold |= Key<T>{scratch.digit} << shift;
    left = scratch.left;
    sync_block();
  }
  return threshold;
}

/// Keys and places of the k largest.
template <class K>
struct Found {
  K* keys;
  std::uint32_t* places;
};

template <class T>
__device__ void collect(const Line<T>& line, Key<T> threshold, std::uint32_t left, const Found<Key<T>>& found,
                        Scratch& scratch) {
  std::uint32_t above_before = 0, equal_before = 0;
  const auto threads = static_cast<std::uint32_t>(block_threads());
  for (std::uint32_t base = 0; base < line.n; base += threads) {
    const std::uint32_t i = base + static_cast<std::uint32_t>(thread_index());
    const Key<T> key = i < line.n ? line.key(i) : 0;
    const bool above = i < line.n && key > threshold, equal = i < line.n && key == threshold;
    const Ranks ranks = rank_flags(above, equal, scratch);
    const std::uint32_t equals = equal_before + ranks.b;
    if (above || (equal && equals < left)) {
      const std::uint32_t at = above_before + ranks.a + (equals < left ? equals : left);
      found.keys[at] = key;
      found.places[at] = i;
    }
    above_before += ranks.all_a;
    equal_before += ranks.all_b;
  }
  sync_block();
}

/// Stable, largest first; the result is in `from`, which is exchanged with `to`.
template <class K>
__device__ void sort_found(Found<K>& from, Found<K>& to, std::uint32_t k, Scratch& scratch) {
  const auto threads = static_cast<std::uint32_t>(block_threads()), me = static_cast<std::uint32_t>(thread_index());
  for (int bit = 0; bit < static_cast<int>(8 * sizeof(K)); ++bit) {
    std::uint32_t ones = 0;
    for (std::uint32_t i = me; i < k; i += threads) ones += static_cast<std::uint32_t>(from.keys[i] >> bit & 1);
    ones = block_sum(ones, scratch.sums);
    if (ones == 0 || ones == k) continue;
    std::uint32_t ones_before = 0, zeros_before = ones;
    for (std::uint32_t base = 0; base < k; base += threads) {
      const std::uint32_t i = base + me;
      const K key = i < k ? from.keys[i] : 0;
      const bool one = i < k && (key >> bit & 1) != 0, zero = i < k && !one;
      const Ranks ranks = rank_flags(one, zero, scratch);
      if (i < k) {
        const std::uint32_t at = one ? ones_before + ranks.a : zeros_before + ranks.b;
        to.keys[at] = key;
        to.places[at] = from.places[i];
      }
      ones_before += ranks.all_a;
      zeros_before += ranks.all_b;
    }
    sync_block();
    const Found<K> other = from;
    from = to;
    to = other;
  }
}

template <class T>
struct TopKCall {
  const T* x;
  const std::int64_t* names;  // places of x's elements in lines of which they were found, or null: x has the lines
  IndexWalk lines, where;     // where lines begin, and their numbers among the result's lines
  std::int64_t step, inner, n;
  std::uint32_t k, parts;  // `parts` > 1: a block's result is a line of its own
  T* values;
  std::int64_t* places;
  Found<Key<T>> found, other;  // k for each block; `other` only for k > kRanked
};

template <class T>
__global__ void topk_kernel(TopKCall<T> call) {
  auto& scratch = shared<Scratch>();
  const std::int64_t block = block_index(), part = block % call.parts;
  const std::int64_t begin = call.n * part / call.parts, end = call.n * (part + 1) / call.parts;
  const std::int64_t origin = call.lines.offset(block / call.parts) + begin * call.step;
  const std::int64_t number = call.parts > 1 ? block : call.where.offset(block);
  const std::uint32_t k = call.k;
  const Line<T> line{call.x + origin, call.step, static_cast<std::uint32_t>(end - begin)};
  Found<Key<T>> found{call.found.keys + block * k, call.found.places + block * k};
  std::uint32_t left = 0;
  const Key<T> threshold = find_threshold(line, k, left, scratch);
  collect(line, threshold, left, found, scratch);
  const std::int64_t first = number / call.inner * k * call.inner + number % call.inner;
  const auto put = [&](std::uint32_t rank, std::uint32_t place) {
    const std::int64_t at = first + rank * call.inner;
    call.values[at] = line.x[place * line.step];
    call.places[at] = call.names ? call.names[origin + place * line.step] : begin + place;
  };
  const auto threads = static_cast<std::uint32_t>(block_threads()), me = static_cast<std::uint32_t>(thread_index());
  if (k <= kRanked) {
    for (std::uint32_t i = me; i < k; i += threads) {
      const Key<T> key = found.keys[i];
      std::uint32_t rank = 0;
      for (std::uint32_t j = 0; j < k; ++j) {
        const Key<T> other = found.keys[j];
        rank += other > key || (other == key && j < i);
      }
      put(rank, found.places[i]);
    }
  } else {
    Found<Key<T>> other{call.other.keys + block * k, call.other.places + block * k};
    sort_found(found, other, k, scratch);
    for (std::uint32_t i = me; i < k; i += threads) put(i, found.places[i]);
  }
}

/// Blocks of a line: enough to fill a device, each with many more elements than it finds.
std::int64_t parts_of(std::int64_t lines, std::int64_t n, std::int64_t k) {
  constexpr std::int64_t kBlocks = 512, kElements = 8192, kTimes = 8;
  return std::max<std::int64_t>(std::min(kBlocks / lines, n / std::max(kElements, kTimes * k)), 1);
}

template <class T>
void run(Context& context, std::int64_t lines, TopKCall<T> call) {
  const std::int64_t blocks = lines * call.parts, entries = blocks * call.k, lists = call.k > kRanked ? 2 : 1;
  check(blocks < std::int64_t{1} << 31, "topk of {} lines: kernels take fewer than 2^31", blocks);
  unsigned threads = kWarp;
  while (threads < kMostThreads && std::int64_t{threads} * 4 < call.n / call.parts) threads *= 2;
  const Workspace memory(context, lists * entries * static_cast<std::int64_t>(sizeof(Key<T>) + sizeof(std::uint32_t)));
  auto* const keys = memory.as<Key<T>>();
  auto* const places = reinterpret_cast<std::uint32_t*>(keys + lists * entries);
  call.found = {keys, places};
  call.other = {keys + (lists - 1) * entries, places + (lists - 1) * entries};
  launch(context.stream(), topk_kernel<T>,
         {.blocks = static_cast<unsigned>(blocks), .threads = threads, .shared_bytes = sizeof(Scratch)}, call);
}

template <class T>
void run_parts(Context& context, std::int64_t lines, TopKCall<T> call) {
  const std::int64_t candidates = call.parts * std::int64_t{call.k}, all = lines * candidates;
  const Workspace names(context, all * static_cast<std::int64_t>(sizeof(std::int64_t)));
  const Workspace values(context, all * static_cast<std::int64_t>(sizeof(T)));
  TopKCall<T> of_parts = call;
  of_parts.inner = 1;
  of_parts.values = values.as<T>();
  of_parts.places = names.as<std::int64_t>();
  run(context, lines, of_parts);
  call.x = values.as<const T>();
  call.names = names.as<const std::int64_t>();
  call.lines = IndexWalk({lines}, {candidates});
  call.step = 1;
  call.n = candidates;
  call.parts = 1;
  run(context, lines, call);
}

void topk(const KernelCall& call) {
  const Tensor& x = call.in[0];
  const auto& attrs = call.attrs.as<TopKAttrs>();
  if (call.out[0].numel() == 0) return;
  Context& context = context_of(call);
  const std::int64_t n = x.size(attrs.dim), k = attrs.k;
  check(n < std::int64_t{1} << 31, "topk along a dim of {} elements: kernels take fewer than 2^31", n);
  const ReducePlan plan = plan_whole_rows(x.shape(), x.strides(), std::uint64_t{1} << attrs.dim);
  std::int64_t inner = 1;
  for (int d = attrs.dim + 1; d < x.ndim(); ++d) inner *= x.size(d);
  const std::int64_t parts = parts_of(plan.results, n, k);
  visit_dtype(x.dtype(), [&]<class T>(Type<T>) {
    const TopKCall<T> arguments{.x = x.data<T>(),
                                .names = nullptr,
                                .lines = plan.kept,
                                .where = plan.out,
                                .step = x.strides()[attrs.dim],
                                .inner = inner,
                                .n = n,
                                .k = static_cast<std::uint32_t>(k),
                                .parts = static_cast<std::uint32_t>(parts),
                                .values = call.out[0].mutable_data<T>(),
                                .places = call.out[1].mutable_data<std::int64_t>(),
                                .found = {},
                                .other = {}};
    if (parts > 1) run_parts(context, plan.results, arguments);
    else run(context, plan.results, arguments);
  });
}

constexpr KernelEntry kTopKEntries[] = {{op::topk, topk}};

}  // namespace

void register_topk(OpTable& table) { add_kernels(table, kTopKEntries); }

}  // namespace sherd::cuda
