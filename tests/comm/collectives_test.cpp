// Values of the collectives, on threads and processes alike. Oracle: closed forms, and for reductions a scalar loop
// over the ranks in order; results are compared bit by bit.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <random>

#include "tests/comm/backends.h"
#include "tests/support/tree_sum.h"

namespace sherd::testing {
namespace {

constexpr std::int64_t kSizes[] = {0, 1, 3, 64, 1000, 100003};

/// What rank `rank` holds at element i: varied enough that the order of a float sum shows in its bits.
template <class T>
T value(int rank, std::int64_t i, int salt = 0) {
  auto h = static_cast<std::uint64_t>(i * 7 + rank * 1000003 + salt * 7919 + 1) * 0x9e3779b97f4a7c15u;
  h ^= h >> 29;
  if constexpr (std::is_same_v<T, bool>) return h % 3 == 0;
  else if constexpr (std::is_integral_v<T>) return static_cast<T>(h >> 40);
  else return static_cast<T>(static_cast<float>(static_cast<int>(h % 60001) - 30000) / 977.0f);
}

template <class T>
std::vector<std::uint8_t> bits(const T* data, std::size_t count) {
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(data);
  return {bytes, bytes + count * sizeof(T)};
}

/// vector<bool> has no data(), so buffers are plain arrays.
template <class T>
struct Buffer {
  explicit Buffer(std::int64_t n) : count(static_cast<std::size_t>(n)), data(std::make_unique<T[]>(count)) {}
  T& operator[](std::int64_t i) { return data[static_cast<std::size_t>(i)]; }
  std::size_t count;
  std::unique_ptr<T[]> data;
  bool operator==(const Buffer& other) const { return bits(data.get(), count) == bits(other.data.get(), other.count); }
};

/// The chunk rule of torch.chunk: trailing ranks get less, possibly nothing.
std::vector<std::int64_t> chunks(std::int64_t total, int ranks) {
  const std::int64_t chunk = (total + ranks - 1) / ranks;
  std::vector<std::int64_t> counts;
  for (int r = 0; r < ranks; ++r) counts.push_back(std::clamp<std::int64_t>(total - r * chunk, 0, chunk));
  return counts;
}

/// Everything on the last rank.
std::vector<std::int64_t> lopsided(std::int64_t total, int ranks) {
  std::vector<std::int64_t> counts(static_cast<std::size_t>(ranks));
  counts.back() = total;
  return counts;
}

std::int64_t start_of(const std::vector<std::int64_t>& counts, int rank) {
  return std::accumulate(counts.begin(), counts.begin() + rank, std::int64_t{0});
}

template <class T>
T reduced(int ranks, std::int64_t i, ReduceKind kind, double scale = 1.0) {
  using A = std::conditional_t<std::is_same_v<T, bf16> || std::is_same_v<T, f16>, float, T>;
  std::vector<A> leaves;
  for (int r = 0; r < ranks; ++r) leaves.push_back(static_cast<A>(value<T>(r, i)));
  A acc = tree_sum(leaves, [kind](A a, A x) -> A {
    using Wide = std::conditional_t<std::is_integral_v<A>, std::uint64_t, A>;
    switch (kind) {
      case ReduceKind::product: return static_cast<A>(static_cast<Wide>(a) * static_cast<Wide>(x));
      case ReduceKind::max: return std::max(a, x);
      case ReduceKind::min: return std::min(a, x);
      default: return static_cast<A>(static_cast<Wide>(a) + static_cast<Wide>(x));
    }
  });
  if constexpr (!std::is_integral_v<A>) acc = acc * static_cast<A>(kind == ReduceKind::avg ? scale / ranks : scale);
  return static_cast<T>(acc);
}

template <class T>
void check_moves(HostGroup& group, const std::vector<std::int64_t>& counts) {
  const int n = group.size(), me = group.rank();
  const std::int64_t total = start_of(counts, n), first = start_of(counts, me);
  Buffer<T> expected(total), gathered(total);
  for (int r = 0; r < n; ++r)
    for (std::int64_t i = start_of(counts, r); i < start_of(counts, r + 1); ++i) expected[i] = value<T>(r, i);
  for (std::int64_t i = first; i < start_of(counts, me + 1); ++i) gathered[i] = value<T>(me, i);
  group.all_gather({in_place(gathered.data.get(), dtype_of<T>, counts)});
  EXPECT_EQ(gathered, expected) << "all_gather of " << total << " " << name(dtype_of<T>) << " on rank " << me << " of "
                                << n;

  const int root = static_cast<int>(total % n);
  Buffer<T> sent(total), received(total);
  for (std::int64_t i = 0; i < total; ++i) sent[i] = value<T>(root, i), received[i] = value<T>(me, i);
  group.broadcast({in_place(received.data.get(), dtype_of<T>, total)}, root);
  EXPECT_EQ(received, sent) << "broadcast of " << total << " " << name(dtype_of<T>) << " on rank " << me << " of " << n;
}

template <class T>
void check_reductions(HostGroup& group, const std::vector<std::int64_t>& counts, ReduceOptions options) {
  const int n = group.size(), me = group.rank();
  const std::int64_t total = start_of(counts, n), first = start_of(counts, me);
  Buffer<T> input(total), all(total), expected(total);
  for (std::int64_t i = 0; i < total; ++i) {
    input[i] = all[i] = value<T>(me, i);
    expected[i] = reduced<T>(n, i, options.kind, options.scale);
  }
  group.all_reduce({in_place(all.data.get(), dtype_of<T>, total)}, options);
  EXPECT_EQ(all, expected) << "all_reduce " << name(options.kind) << " of " << total << " " << name(dtype_of<T>)
                           << " on " << n << " ranks";

  const std::int64_t own = counts[static_cast<std::size_t>(me)];
  Buffer<T> mine(own), mine_expected(own);
  for (std::int64_t i = 0; i < own; ++i) mine_expected[i] = expected[first + i];
  const CollectivePart part{.in = {input.data.get()}, .out = {mine.data.get()}, .dtype = dtype_of<T>, .counts = counts};
  group.reduce_scatter({part}, options);
  EXPECT_EQ(mine, mine_expected) << "reduce_scatter " << name(options.kind) << " of " << total << " "
                                 << name(dtype_of<T>) << " on " << n << " ranks";
}

class Collectives : public ::testing::TestWithParam<Backend> {
 protected:
  void expect_fine(int ranks, const RankBody& body) const {
    for (const std::string& message : GetParam().run(ranks, body)) EXPECT_EQ(message, "") << ranks << " ranks";
  }
  std::vector<int> worlds() const {
    return GetParam().max_ranks == 7 ? std::vector{1, 2, 3, 4, 7} : std::vector{1, 2, 3, 4};
  }
};
INSTANTIATE_TEST_SUITE_P(Groups, Collectives, ::testing::ValuesIn(all_backends()),
                         [](const auto& param) { return param.param.name; });

TEST_P(Collectives, MovesEverySizeAndTypeUnchanged) {
  for (const int ranks : worlds()) {
    expect_fine(ranks, [](HostGroup& group) {
      for (const std::int64_t size : kSizes) {
        for (int t = 0; t < kNumDTypes; ++t) {
          visit_dtype(static_cast<DType>(t), [&]<class T>(Type<T>) {
            check_moves<T>(group, chunks(size, group.size()));
            if (size <= 1000) check_moves<T>(group, lopsided(size, group.size()));
          });
        }
      }
    });
  }
}

TEST_P(Collectives, ReducesEverySizeAndTypeAsATree) {
  for (const int ranks : worlds()) {
    expect_fine(ranks, [](HostGroup& group) {
      for (const std::int64_t size : kSizes) {
        for (int t = 0; t < kNumDTypes; ++t) {
          visit_dtype(static_cast<DType>(t), [&]<class T>(Type<T>) {
            const ReduceKind kind = std::is_same_v<T, bool> ? ReduceKind::max : ReduceKind::sum;
            check_reductions<T>(group, chunks(size, group.size()), {.kind = kind});
            if (size <= 1000) check_reductions<T>(group, lopsided(size, group.size()), {.kind = kind});
          });
        }
      }
    });
  }
}

TEST_P(Collectives, ReducesWithEveryKindAndScale) {
  expect_fine(3, [](HostGroup& group) {
    for (const std::int64_t size : {std::int64_t{77}, std::int64_t{9001}}) {
      const std::vector<std::int64_t> counts = chunks(size, group.size());
      for (const ReduceKind kind :
           {ReduceKind::sum, ReduceKind::avg, ReduceKind::max, ReduceKind::min, ReduceKind::product}) {
        for (const double scale : {1.0, 0.125, 1.0 / 3}) {
          check_reductions<float>(group, counts, {kind, scale});
          check_reductions<double>(group, counts, {kind, scale});
          check_reductions<bf16>(group, counts, {kind, scale});
          check_reductions<f16>(group, counts, {kind, scale});
        }
        if (kind == ReduceKind::avg) continue;
        check_reductions<std::int64_t>(group, counts, {.kind = kind});
        check_reductions<std::uint8_t>(group, counts, {.kind = kind});
      }
      check_reductions<bool>(group, counts, {.kind = ReduceKind::min});
    }
  });
}

// 256 + 1 + 1 + 1 is 259, halfway between the bfloat16 numbers 258 and 260; adding in bfloat16 would stay at 256.
TEST_P(Collectives, Bf16AccumulatesInF32AndRoundsOnce) {
  expect_fine(4, [](HostGroup& group) {
    bf16 x(group.rank() == 0 ? 256.0f : 1.0f);
    group.all_reduce({in_place(&x, DType::bf16, 1)}, {});
    EXPECT_EQ(static_cast<float>(x), 260.0f);
  });
}

TEST_P(Collectives, NanOfAnyRankIsTheMaximumAndTheMinimum) {
  for (const int culprit : {0, 1, 2}) {
    expect_fine(3, [&](HostGroup& group) {
      for (const ReduceKind kind : {ReduceKind::max, ReduceKind::min}) {
        float x = group.rank() == culprit ? std::numeric_limits<float>::quiet_NaN() : static_cast<float>(group.rank());
        group.all_reduce({in_place(&x, DType::f32, 1)}, {.kind = kind});
        EXPECT_TRUE(std::isnan(x)) << name(kind);
      }
    });
  }
}

TEST_P(Collectives, IntegersWrapExactly) {
  expect_fine(2, [](HostGroup& group) {
    std::int64_t x = group.rank() == 0 ? std::numeric_limits<std::int64_t>::max() : 1;
    group.all_reduce({in_place(&x, DType::i64, 1)}, {});
    EXPECT_EQ(x, std::numeric_limits<std::int64_t>::min());
  });
}

TEST_P(Collectives, ReduceScatterWritesInsideItsInputAndAccumulates) {
  for (const std::int64_t own : {std::int64_t{5}, std::int64_t{7001}}) {
    expect_fine(3, [&](HostGroup& group) {
      const std::vector<std::int64_t> counts{own, 0, own + 1};
      const int me = group.rank();
      const std::int64_t total = 2 * own + 1, first = start_of(counts, me),
                         count = counts[static_cast<std::size_t>(me)];
      Buffer<float> in(total), apart(count);
      for (std::int64_t i = 0; i < total; ++i) in[i] = value<float>(me, i);
      for (std::int64_t i = 0; i < count; ++i) apart[i] = 100.0f;
      // In one list the second part overwrites what the first one reads, so these are two calls.
      group.reduce_scatter({{.in = {in.data.get()}, .out = {apart.data.get()}, .counts = counts, .accumulate = true}},
                           {});
      group.reduce_scatter({{.in = {in.data.get()}, .out = {in.data.get() + first}, .counts = counts}}, {});
      for (std::int64_t i = 0; i < count; ++i) {
        const float sum = reduced<float>(3, first + i, ReduceKind::sum);
        ASSERT_EQ(apart[i], 100.0f + sum) << i;
        ASSERT_EQ(in[first + i], sum) << i;
      }
    });
  }
}

TEST_P(Collectives, GroupedListsMixTypesAndEmptyTensorsInOneLaunch) {
  for (const std::int64_t scale : {std::int64_t{1}, std::int64_t{3000}}) {
    expect_fine(4, [&](HostGroup& group) {
      const int me = group.rank();
      const std::vector<std::vector<std::int64_t>> counts{
          {scale, 0, 2 * scale, 1}, {0, 0, 0, 0}, {1, 1, 1, 1}, {3, 2, 1, 0}};
      Buffer<float> a(3 * scale + 1), empty(0);
      Buffer<bf16> b(4);
      Buffer<std::uint8_t> c(6);
      const auto fill = [&](auto& buffer, const std::vector<std::int64_t>& split) {
        using T = std::remove_reference_t<decltype(buffer[0])>;
        for (std::int64_t i = start_of(split, me); i < start_of(split, me + 1); ++i) buffer[i] = value<T>(me, i);
      };
      fill(a, counts[0]), fill(b, counts[2]), fill(c, counts[3]);
      group.all_gather({in_place(a.data.get(), DType::f32, counts[0]), in_place(nullptr, DType::f32, counts[1]),
                        in_place(b.data.get(), DType::bf16, counts[2]), in_place(c.data.get(), DType::u8, counts[3])});
      const auto is_gathered = [&](auto& buffer, const std::vector<std::int64_t>& split) {
        using T = std::remove_reference_t<decltype(buffer[0])>;
        for (int r = 0; r < 4; ++r)
          for (std::int64_t i = start_of(split, r); i < start_of(split, r + 1); ++i) {
            const T expected = value<T>(r, i);
            if (bits(&buffer[i], 1) != bits(&expected, 1)) return false;
          }
        return true;
      };
      EXPECT_TRUE(is_gathered(a, counts[0]) && is_gathered(b, counts[2]) && is_gathered(c, counts[3]));

      Buffer<float> x(3 * scale + 1);
      Buffer<double> y(5);
      for (std::int64_t i = 0; i < 3 * scale + 1; ++i) x[i] = value<float>(me, i);
      for (std::int64_t i = 0; i < 5; ++i) y[i] = value<double>(me, i);
      group.all_reduce({in_place(x.data.get(), DType::f32, 3 * scale + 1), in_place(y.data.get(), DType::f64, 5)},
                       {.kind = ReduceKind::avg});
      for (std::int64_t i = 0; i < 3 * scale + 1; ++i) ASSERT_EQ(x[i], reduced<float>(4, i, ReduceKind::avg));
      for (std::int64_t i = 0; i < 5; ++i) ASSERT_EQ(y[i], reduced<double>(4, i, ReduceKind::avg));
      EXPECT_EQ(group.counts().all_gather.calls, 1);
      EXPECT_EQ(group.counts().all_reduce.calls, 1);
    });
  }
}

TEST_P(Collectives, CountsLaunchesAndFullBuffers) {
  expect_fine(2, [](HostGroup& group) {
    std::vector<float> a(10), b(6), out(4);
    const std::vector<std::int64_t> ten{7, 3}, six{2, 4}, none{0, 0};
    group.all_gather({in_place(a.data(), DType::f32, ten), in_place(b.data(), DType::f32, six)});
    const CollectivePart scatter{.in = {b.data()}, .out = {out.data()}, .counts = six};
    group.reduce_scatter({scatter}, {});
    const CollectivePart flat = in_place(a.data(), DType::f32, 10);
    group.all_reduce({flat}, {});
    group.broadcast({flat}, 1);
    group.broadcast({flat}, 0);
    group.barrier();
    const CommCounts& counts = group.counts();
    EXPECT_EQ(counts.all_gather.calls, 1);
    EXPECT_EQ(counts.all_gather.bytes, 64);
    EXPECT_EQ(counts.reduce_scatter.calls, 1);
    EXPECT_EQ(counts.reduce_scatter.bytes, 24);
    EXPECT_EQ(counts.all_reduce.calls, 1);
    EXPECT_EQ(counts.all_reduce.bytes, 40);
    EXPECT_EQ(counts.broadcast.calls, 2);
    EXPECT_EQ(counts.broadcast.bytes, 80);
    EXPECT_EQ(counts.barrier.calls, 1);
    EXPECT_EQ(counts.barrier.bytes, 0);
  });
}

// Many calls back to back, sizes on both sides of every threshold: finds windows that are refilled too early.
TEST_P(Collectives, RandomSequencesStayExact) {
  static constexpr unsigned kSeed = 20240517;
  expect_fine(4, [](HostGroup& group) {
    std::mt19937 random(kSeed);
    for (int call = 0; call < 150; ++call) {
      const std::int64_t size = static_cast<std::int64_t>(random() % 3 == 0 ? random() % 20000 : random() % 200);
      const std::vector<std::int64_t> counts = random() % 2 == 0 ? chunks(size, 4) : lopsided(size, 4);
      switch (random() % 3) {
        case 0: check_moves<float>(group, counts); break;
        case 1: check_reductions<float>(group, counts, {.kind = ReduceKind::avg}); break;
        default: check_moves<std::uint8_t>(group, counts); break;
      }
      if (::testing::Test::HasFailure()) FAIL() << "seed " << kSeed << ", call " << call;
    }
  });
}

TEST(SingleGroup, ScalesAndMovesNothing) {
  const std::shared_ptr<ProcessGroup> group = make_single_group();
  EXPECT_EQ(group->size(), 1);
  std::vector<float> x{1, 2, 3};
  group->host().all_reduce({in_place(x.data(), DType::f32, 3)}, {.kind = ReduceKind::avg, .scale = 0.5});
  EXPECT_EQ(x, (std::vector<float>{0.5f, 1.0f, 1.5f}));
  EXPECT_EQ(group->host().counts().all_reduce.bytes, 12);
  group->abort("stop");
  EXPECT_THROW(group->host().barrier(), CommError);
  group->reset();
  group->host().barrier();
}

}  // namespace
}  // namespace sherd::testing
