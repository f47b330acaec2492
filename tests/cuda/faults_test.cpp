// Faults that kernels find in device data: noted without a wait, thrown at the next one, the first of them whatever
// the order of threads.
#include "runtime/cuda/device/faults.h"

#include <chrono>

#include <gtest/gtest.h>

#include "runtime/cuda/device/context.h"
#include "runtime/exec/context.h"
#include "runtime/op/rows/ops.h"
#include "tests/cuda/cuda_test.h"
#include "tests/cuda/device_kernels.h"
#include "tests/support/expect_error.h"

namespace sherd::testing {
namespace {

class CudaFaults : public cuda::CudaTest {
 protected:
  static cuda::Context& context() { return static_cast<cuda::Context&>(RankContext::current().device(kCuda)); }
  // Queues a check of `ids` against `limit`, in the name of the row embedding.
  static void check(const Tensor& ids, int limit) {
    cuda::check_ids(context().stream(), context().faults().sink(op::embedding, "index"), ids.data<std::int32_t>(),
                    static_cast<int>(ids.numel()), limit);
  }
  static Tensor on_device(std::vector<std::int32_t> values) {
    const auto n = static_cast<std::int64_t>(values.size());
    return to(Tensor::from<std::int32_t>(values, {n}), kCuda);
  }
};

TEST_F(CudaFaults, TheNextWaitThrows) {
  check(on_device({1, 9, 2}), 5);
  expect_error([] { context().synchronize(); }, {"embedding: index 9 at position 1 is outside of 0..4", "cuda:0"});
  context().synchronize();  // once
}

TEST_F(CudaFaults, AReadIsAWait) {
  const Tensor ids = on_device({0, -1});
  check(ids, 5);
  expect_error([&] { (void)ids.to_vector<std::int32_t>(); }, {"index -1 at position 1"});
  EXPECT_EQ(ids.to_vector<std::int32_t>(), (std::vector<std::int32_t>{0, -1}));
}

TEST_F(CudaFaults, AReadThatOutlivesItsContextThrowsThem) {
  std::unique_ptr<HostRead> read;
  {
    const RankScope other;  // a rank of its own, with a context of its own
    const Tensor ids = on_device({7});
    check(ids, 5);
    read = context().start_read(ids.raw(), ids.bytes());
  }
  expect_error([&] { (void)read->wait(); }, {"index 7 at position 0"});
  expect_error([&] { (void)read->wait(); }, {"index 7"});
}

TEST_F(CudaFaults, TheLowestPositionOfTheFirstCallIsNamed) {
  std::vector<std::int32_t> many(1000, 3);
  for (std::size_t i = 137; i < many.size(); ++i) many[i] = static_cast<std::int32_t>(i);
  check(on_device({1, 1}), 5);
  check(on_device(many), 5);
  check(on_device({77}), 5);
  expect_error([] { context().synchronize(); }, {"index 137 at position 137"});
}

// As if the tokenizer had more words than the table: nothing waits for anything else, in whatever order they come.
TEST_F(CudaFaults, AMillionOfThemAreNoHang) {
  constexpr int n = 1'000'000;
  std::vector<std::int32_t> ids(n);
  for (int i = 0; i < n; ++i) ids[static_cast<std::size_t>(i)] = n - i;
  const auto start = std::chrono::steady_clock::now();
  check(on_device(ids), 1);
  expect_error([] { context().synchronize(); }, {"embedding: index 1000000 at position 0 is outside of 0..0"});
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
}

// The value that is named is the one at the position that is named: all its bits, of whatever other values there are.
TEST_F(CudaFaults, ValuesAreNotMixed) {
  std::vector<std::int64_t> values(10'000);
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = i < 4321 ? 3 : static_cast<std::int64_t>(i * 0x9e3779b97f4a7c15u | 1u << 20);
  const std::int64_t first = values[4321];
  const Tensor table = to(Tensor::from<float>(std::vector<float>(5, 1), {5, 1}), kCuda);
  const Tensor ids = to(Tensor::from<std::int64_t>(values, {10'000}), kCuda);
  (void)embedding(table, ids);
  expect_error([] { context().synchronize(); },
               {fmt::format("embedding: index {} at position 4321 is outside of 0..4", first)});
}

// Whatever a later call finds, also one of a graph that was recorded before it.
TEST_F(CudaFaults, TheFirstOfTheProgramIsNamed) {
  const Tensor early = on_device({8}), late = on_device({0, 9});
  const std::unique_ptr<DeviceGraph> graph = context().record([&] { check(early, 5); });
  check(late, 5);
  graph->launch();
  expect_error([] { context().synchronize(); }, {"index 9 at position 1"});
}

TEST_F(CudaFaults, AGraphReportsAtEveryLaunch) {
  const Tensor ids = on_device({6});
  const std::unique_ptr<DeviceGraph> graph = context().record([&] { check(ids, 5); });
  for (int i = 0; i < 2; ++i) {
    graph->launch();
    expect_error([] { context().synchronize(); }, {"index 6 at position 0"});
  }
}

}  // namespace
}  // namespace sherd::testing
