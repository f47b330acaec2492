// The emulated NCCL's collectives against loops over all ranks' values, in threads and in two processes. Values are
// small integers, whose sums and products are exact in any order.
#include <numeric>

#include <gtest/gtest.h>

#include "runtime/tensor/dtype.h"
#include "tests/cuda/nccl/fake_ranks.h"
#include "tests/support/processes.h"

namespace sherd::cuda::nccl {
namespace {

using FakeCollectives = FakeNccl;

template <class T>
constexpr DataType kTypeOf = DataType::float32;
template <>
constexpr DataType kTypeOf<bf16> = DataType::bfloat16;
template <>
constexpr DataType kTypeOf<double> = DataType::float64;
template <>
constexpr DataType kTypeOf<std::int32_t> = DataType::int32;
template <>
constexpr DataType kTypeOf<std::uint8_t> = DataType::uint8;

template <class T>
T value(double x) {
  if constexpr (std::is_same_v<T, bf16>) return bf16(static_cast<float>(x));
  else return static_cast<T>(x);
}
template <class T>
double number(T x) {
  if constexpr (std::is_same_v<T, bf16>) return static_cast<double>(static_cast<float>(x));
  else return static_cast<double>(x);
}

// Element i of rank r: 1, 2, 3 or 4.
double element(int r, std::size_t i) { return 1 + (static_cast<int>(i) + r * 3) % 4; }

template <class T>
std::vector<T> values_of(int rank, std::size_t count) {
  std::vector<T> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = value<T>(element(rank, i));
  return values;
}

double reduced(RedOp op, int world, std::size_t i) {
  double result = element(0, i);
  for (int r = 1; r < world; ++r) {
    const double x = element(r, i);
    result = op == RedOp::prod  ? result * x
             : op == RedOp::max ? std::max(result, x)
             : op == RedOp::min ? std::min(result, x)
                                : result + x;
  }
  return result;
}

template <class T>
void expect_equal(const std::vector<T>& values, const std::function<double(std::size_t)>& wanted, const char* what) {
  for (std::size_t i = 0; i < values.size(); ++i) ASSERT_EQ(number(values[i]), wanted(i)) << what << ", element " << i;
}

template <class T>
void reductions(const FakeRank& rank, std::size_t n, RedOp op) {
  const auto& api = rank.api;
  const auto world = static_cast<std::size_t>(rank.world), own = static_cast<std::size_t>(rank.rank);
  const DataType type = kTypeOf<T>;
  DeviceArray<T> in(rank.stream, values_of<T>(rank.rank, n * world)), out(n * world);
  rank.expect(api.all_reduce(in.data(), out.data(), n * world, type, op, rank.comm, rank.stream));
  expect_equal<T>(out.read(rank.stream), [&](std::size_t i) { return reduced(op, rank.world, i); }, "all_reduce");
  rank.expect(api.reduce_scatter(in.data(), out.data(), n, type, op, rank.comm, rank.stream));
  auto scattered = out.read(rank.stream);
  scattered.resize(n);
  expect_equal<T>(scattered, [&](std::size_t i) { return reduced(op, rank.world, own * n + i); }, "reduce_scatter");
  for (int root = 0; root < rank.world; ++root) {
    DeviceArray<T> at_root(n);
    rank.expect(
        api.reduce(in.data(), rank.rank == root ? at_root.data() : nullptr, n, type, op, root, rank.comm, rank.stream));
    const auto values = at_root.read(rank.stream);
    if (rank.rank == root) expect_equal<T>(values, [&](std::size_t i) { return reduced(op, rank.world, i); }, "reduce");
  }
  // In place.
  rank.expect(api.reduce_scatter(in.data(), in.data() + own * n, n, type, op, rank.comm, rank.stream));
  auto there = in.read(rank.stream);
  there.erase(there.begin(), there.begin() + static_cast<std::ptrdiff_t>(own * n));
  there.resize(n);
  expect_equal<T>(there, [&](std::size_t i) { return reduced(op, rank.world, own * n + i); }, "in place");
}

template <class T>
void moves(const FakeRank& rank, std::size_t n) {
  const auto& api = rank.api;
  const auto world = static_cast<std::size_t>(rank.world), own = static_cast<std::size_t>(rank.rank);
  const DataType type = kTypeOf<T>;
  const auto gathered = [n](std::size_t i) { return element(static_cast<int>(i / n), i % n); };
  DeviceArray<T> in(rank.stream, values_of<T>(rank.rank, n)), all(n * world);
  rank.expect(api.all_gather(in.data(), all.data(), n, type, rank.comm, rank.stream));
  expect_equal<T>(all.read(rank.stream), gathered, "all_gather");
  rank.expect(api.all_gather(all.data() + own * n, all.data(), n, type, rank.comm, rank.stream));
  expect_equal<T>(all.read(rank.stream), gathered, "all_gather in place");
  for (int root = 0; root < rank.world; ++root) {
    rank.expect(api.broadcast(in.data(), all.data(), n, type, root, rank.comm, rank.stream));
    auto values = all.read(rank.stream);
    values.resize(n);
    expect_equal<T>(values, [root](std::size_t i) { return element(root, i); }, "broadcast");
  }
  // Each rank sends its values to all, itself too, in one group: a gather by messages.
  rank.expect(api.group_start());
  for (int r = 0; r < rank.world; ++r) {
    rank.expect(api.send(in.data(), n, type, r, rank.comm, rank.stream));
    rank.expect(api.recv(all.data() + static_cast<std::size_t>(r) * n, n, type, r, rank.comm, rank.stream));
  }
  rank.expect(api.group_end());
  expect_equal<T>(all.read(rank.stream), gathered, "messages");
}

template <class T>
void everything(const FakeRank& rank) {
  for (const std::size_t n : {std::size_t{1}, std::size_t{37}}) moves<T>(rank, n);
  for (const RedOp op : {RedOp::sum, RedOp::max, RedOp::min, RedOp::prod}) reductions<T>(rank, 13, op);
}

void every_type(const FakeRank& rank) {
  everything<float>(rank);
  everything<double>(rank);
  everything<bf16>(rank);
  everything<std::int32_t>(rank);
  everything<std::uint8_t>(rank);
}

TEST_F(FakeCollectives, AreThoseOfALoopInThreads) {
  for (const int world : {1, 2, 3, 4})
    run_fake_ranks(world, [](const FakeRank& rank, const auto&) { every_type(rank); });
}

TEST_F(FakeCollectives, AreThoseOfALoopInTwoProcesses) {
  const auto ends = sherd::testing::fork_ranks(2, [](Store& store, int r) {
    const NcclApi api = fake_api();
    UniqueId id{};
    if (r == 0) {
      check_nccl(api, api.get_unique_id(&id), "making an id");
      store.set("id", {id.bytes, sizeof id.bytes});
    } else {
      store.get("id", std::chrono::seconds(20)).copy(id.bytes, sizeof id.bytes);
    }
    sherd::cuda::check(cudaSetDevice(r), "cudaSetDevice");
    FakeRank rank{api, r, 2};
    rank.comm = rank.join(id, rank.config());
    every_type(rank);
    // A device works on while its host waits for something else: here for rank 0, which waits for both devices.
    const DeviceArray<float> x(rank.stream, values_of<float>(r, 5));
    rank.expect(api.all_reduce(x.data(), x.data(), 5, kF32, RedOp::sum, rank.comm, rank.stream));
    if (r == 1) store.get("rank 0 has its sum", std::chrono::seconds(20));
    expect_equal<float>(x.read(rank.stream), [](std::size_t i) { return reduced(RedOp::sum, 2, i); }, "sum");
    if (r == 0) store.set("rank 0 has its sum", "");
    rank.check(api.finalize(rank.comm), "finalizing");
    rank.expect(api.destroy(rank.comm));
  });
  for (const auto& end : ends) EXPECT_EQ(end.status, 0) << end.message;
}

TEST_F(FakeCollectives, AveragesAndFactors) {
  run_fake_ranks(4, [](const FakeRank& rank, const auto&) {
    const auto& api = rank.api;
    const auto sum = [](std::size_t i) { return reduced(RedOp::sum, 4, i); };
    DeviceArray<float> in(rank.stream, values_of<float>(rank.rank, 9)), out(9);
    rank.expect(api.all_reduce(in.data(), out.data(), 9, DataType::float32, RedOp::avg, rank.comm, rank.stream));
    expect_equal<float>(out.read(rank.stream), [&](std::size_t i) { return sum(i) / 4; }, "average");
    DeviceArray<std::int32_t> whole(rank.stream, values_of<std::int32_t>(rank.rank, 9));
    rank.expect(api.all_reduce(whole.data(), whole.data(), 9, DataType::int32, RedOp::avg, rank.comm, rank.stream));
    expect_equal<std::int32_t>(
        whole.read(rank.stream), [&](std::size_t i) { return std::floor(sum(i) / 4); }, "of integers");
    RedOp half{};
    float factor = 0.5;
    rank.expect(api.create_pre_mul_sum(&half, &factor, DataType::float32, ScalarResidence::host_immediate, rank.comm));
    rank.expect(api.all_reduce(in.data(), out.data(), 9, DataType::float32, half, rank.comm, rank.stream));
    expect_equal<float>(out.read(rank.stream), [&](std::size_t i) { return sum(i) / 2; }, "factor");
    rank.expect(api.destroy_op(half, rank.comm));
    rank.expect(api.all_reduce(in.data(), out.data(), 9, DataType::float32, half, rank.comm, rank.stream),
                Result::invalid_argument);
  });
}

// 1e8 + 1 is 1e8 in f32: each order of three parts has its own result. All ranks see the same one.
TEST_F(FakeCollectives, SumInADrawnOrder) {
  std::vector<std::vector<float>> results(3);
  run_fake_ranks(3, [&](const FakeRank& rank, const auto&) {
    const float parts[] = {1e8F, 1, -1e8F};
    DeviceArray<float> in(rank.stream, std::vector<float>(512, parts[rank.rank]));
    rank.expect(rank.api.all_reduce(in.data(), in.data(), 512, DataType::float32, RedOp::sum, rank.comm, rank.stream));
    results[static_cast<std::size_t>(rank.rank)] = in.read(rank.stream);
  });
  EXPECT_EQ(results[0], results[1]);
  EXPECT_EQ(results[0], results[2]);
  const auto ones = std::count(results[0].begin(), results[0].end(), 1.0F);
  EXPECT_GT(ones, 0);  // 1e8 - 1e8 + 1
  EXPECT_GT(std::count(results[0].begin(), results[0].end(), 0.0F), 0) << "the order of ranks, and others";
}

// A group is one item: in any order, so that messages of both directions do not wait for each other.
TEST_F(FakeCollectives, AGroupOfMixedTypesIsOneItem) {
  run_fake_ranks(2, [](const FakeRank& rank, const auto&) {
    const auto& api = rank.api;
    const auto own = static_cast<std::size_t>(rank.rank);
    DeviceArray<float> floats(rank.stream, values_of<float>(rank.rank, 5)), sums(5);
    DeviceArray<bf16> halves(rank.stream, values_of<bf16>(rank.rank, 6));
    rank.expect(api.group_start());
    rank.expect(api.all_reduce(floats.data(), sums.data(), 5, DataType::float32, RedOp::sum, rank.comm, rank.stream));
    rank.expect(api.all_gather(halves.data() + own * 3, halves.data(), 3, DataType::bfloat16, rank.comm, rank.stream));
    rank.expect(api.group_end());
    expect_equal<float>(sums.read(rank.stream), [](std::size_t i) { return reduced(RedOp::sum, 2, i); }, "sums");
    expect_equal<bf16>(
        halves.read(rank.stream), [](std::size_t i) { return element(static_cast<int>(i / 3), i); }, "gather");
  });
}

}  // namespace
}  // namespace sherd::cuda::nccl
