// A kernel that fails takes the device with it, and is noticed by some later call: what that one says.
#include <cstdlib>
#include <sstream>
#include <thread>

#include <gtest/gtest.h>

#include "runtime/cuda/attention/attention.h"
#include "runtime/cuda/device/context.h"
#include "runtime/exec/context.h"
#include "runtime/exec/device_queue.h"
#include "runtime/op/rows/attention_attrs.h"
#include "runtime/op/rows/ops.h"
#include "tests/cuda/cuda_test.h"
#include "tests/cuda/on_device.h"
#include "tests/support/draw.h"
#include "tests/support/emulated_gpu/control.h"

namespace sherd::testing {
namespace {

namespace emulated = cuda::emulated;

class LostDevice : public cuda::CudaTest {
 protected:
  LostDevice() { start(/*blocking=*/false); }
  ~LostDevice() override { emulated::reset(); }

  // A device on which the softmax fails, once something waits for it.
  static void start(bool blocking) {
    emulated::Configuration configuration = emulated::default_configuration();
    configuration.illegal_address = "softmax_rows_kernel";
    configuration.launch_blocking = blocking;
    configuration.early = false;
    emulated::reset(configuration);
  }
  static cuda::Context& context() {
    return static_cast<cuda::Context&>(RankContext::current().device(Device::cuda(0)));
  }
  static Tensor draw_there(const Shape& shape, DType dtype = DType::f32) {
    return on_device(draw(normal(shape), dtype, 1));
  }
  // All that an error says.
  template <class Fn>
  static std::string thrown_by(const Fn& fn) {
    try {
      fn();
    } catch (const Error& error) { return error.what(); }
    return "no error";
  }
  static std::string noticed() {
    return thrown_by([] { context().synchronize(); });
  }
  // No call has asked for the status since.
  static void fail_unnoticed(const Tensor& x) {
    const cudaStream_t stream = context().stream();
    (void)softmax(x, -1);
    (void)cudaStreamSynchronize(stream);
  }
  // Copies a tensor to the host on a queue beside compute.
  static Event evict(const Tensor& t, const std::shared_ptr<std::byte>& to) {
    auto& queue = static_cast<DeviceQueue&>(RankContext::current().queue("offload", Device::cuda(0)));
    const Loan loan{t.storage(), false};
    return queue.submit({.name = "evict",
                         .run = [&queue, to, from = t.storage()->address(),
                                 bytes = t.bytes()] { queue.stream().to_host(to.get(), from, bytes); },
                         .loans = {&loan, 1}});
  }
  static std::vector<std::string> list_in(const std::string& text) {
    std::vector<std::string> list;
    std::istringstream in(text);
    for (std::string line; std::getline(in, line);)
      if (line.starts_with("            ")) list.push_back(line.substr(12));
    return list;
  }
  static void expect_said(const std::string& text, std::initializer_list<const char*> parts) {
    for (const char* part : parts)
      EXPECT_NE(text.find(part), std::string::npos) << "\"" << part << "\" is not in: " << text;
  }
};

TEST_F(LostDevice, TheErrorBlamesAnEarlierKernelAndListsTheLastOnes) {
  const Tensor x = draw_there({4, 32});
  context().synchronize();
  const Tensor y = softmax(x, -1);
  (void)(y * y);
  const std::string text = noticed();
  expect_said(text, {"cuda:0 is lost to this process: cudaErrorIllegalAddress", "queued EARLIER", "newest last",
                     "all that was queued earlier had ended", "CUDA_LAUNCH_BLOCKING=1", "compute-sanitizer"});
  const std::vector<std::string> list = list_in(text);
  ASSERT_EQ(list.size(), 2u) << text;
  EXPECT_TRUE(list[0].starts_with("softmax: softmax_rows_kernel<")) << list[0];
  EXPECT_TRUE(list[0].ends_with("blocks of 128 threads") || list[0].ends_with("blocks of 256 threads")) << list[0];
  EXPECT_TRUE(list[1].starts_with("mul: vector_pointwise<")) << list[1];
}

TEST_F(LostDevice, ALaunchThatNoticesItIsNotBlamed) {
  const Tensor x = draw_there({4, 32});
  fail_unnoticed(x);
  const std::string text = thrown_by([&] { (void)(x * x); });
  expect_said(text, {"cuda:0 is lost", "queued EARLIER", "softmax: softmax_rows_kernel<", "noticed "});
  EXPECT_TRUE(text.starts_with("cuda:0 is lost")) << text;
}

TEST_F(LostDevice, EverythingAfterwardsHasTheSameErrorAndAsksTheDeviceNothing) {
  cuda::Context& device = context();
  const Tensor x = draw_there({4, 32}), small = draw_there({2});
  const std::unique_ptr<DeviceGraph> graph = device.record([&] { device.fill(x.raw(), 0, 4); });
  const std::unique_ptr<HostRead> read = device.start_read(small.raw(), small.bytes());
  (void)softmax(x, -1);
  const std::string first = noticed();
  expect_said(first, {"softmax_rows_kernel"});
  emulated::reset_counters();
  std::vector<float> host(1000);
  const auto expect_same = [&](const char* what, const auto& work) {
    EXPECT_TRUE(thrown_by(work).starts_with(first)) << what << ": " << thrown_by(work);
  };
  expect_same("an op", [&] { (void)(x + x); });
  expect_same("a product", [&] { (void)matmul(x, permute(x, {1, 0})); });
  expect_same("a wait", [&] { device.synchronize(); });
  expect_same("a copy", [&] { device.copy(x.raw(), small.raw(), small.bytes()); });
  expect_same("a fill", [&] { device.fill(x.raw(), 0, 4); });
  expect_same("an upload", [&] { device.upload(x.raw(), host.data(), 512); });
  expect_same("a small upload", [&] { device.upload(x.raw(), host.data(), 4); });
  expect_same("a download", [&] { device.download(host.data(), x.raw(), x.bytes()); });
  expect_same("a read under way", [&] { (void)read->wait(); });
  expect_same("asking for it", [&] { (void)read->is_ready(); });
  expect_same("a recording", [&] { (void)device.record([] {}); });
  expect_same("a recorded graph", [&] { graph->launch(); });
  EXPECT_EQ(emulated::counters().calls, 0);
}

TEST_F(LostDevice, TheListHoldsTheLast64) {
  const Tensor x = draw_there({4, 32});
  const Tensor y = softmax(x, -1);
  std::vector<Tensor> kept;  // freeing waits where each block is a segment
  for (int i = 0; i < 50; ++i) kept.insert(kept.end(), {x + x, x * x});
  const std::string text = noticed();
  expect_said(text, {"there was more before"});
  const std::vector<std::string> list = list_in(text);
  EXPECT_EQ(list.size(), 64u) << text;
  for (const std::string& line : list) EXPECT_FALSE(line.starts_with("softmax")) << text;
}

TEST_F(LostDevice, RepetitionsAreOneLine) {
  const Tensor x = draw_there({4, 32});
  context().synchronize();
  const Tensor y = softmax(x, -1);
  std::vector<Tensor> kept;
  for (int i = 0; i < 20; ++i) kept.push_back(x + x);
  const std::vector<std::string> list = list_in(noticed());
  ASSERT_EQ(list.size(), 2u);
  EXPECT_TRUE(list[1].starts_with("add: vector_pointwise<") && list[1].ends_with(", 20 times")) << list[1];
}

TEST_F(LostDevice, ARecordedGraphIsListedAsOne) {
  const Tensor x = draw_there({4, 32});
  context().synchronize();
  const std::unique_ptr<DeviceGraph> graph = context().record([&] { (void)softmax(x, -1); });
  graph->launch();
  const std::vector<std::string> list = list_in(noticed());
  ASSERT_EQ(list.size(), 1u);
  EXPECT_TRUE(list[0].starts_with("a recorded graph; its kernels are listed if")) << list[0];
}

TEST_F(LostDevice, ARankThatOnlyNoticesItSaysSo) {
  const Tensor x = draw_there({4, 32});
  context().synchronize();
  std::string theirs;
  std::thread([&] {
    const RankScope other;
    (void)softmax(draw_there({4, 32}), -1);
    theirs = noticed();
  }).join();
  expect_said(theirs, {"softmax: softmax_rows_kernel<"});
  expect_said(noticed(), {"cuda:0 is lost", "another one of this process", "nothing by this rank"});
}

TEST_F(LostDevice, ALaunchThatIsWaitedForNamesItself) {
  start(/*blocking=*/true);
  ::setenv("CUDA_LAUNCH_BLOCKING", "1", 1);
  const Tensor x = draw_there({4, 32});
  const std::string text = thrown_by([&] { (void)softmax(x, -1); });
  ::unsetenv("CUDA_LAUNCH_BLOCKING");
  expect_said(text, {"the last kernel below"});
  EXPECT_EQ(text.find("EARLIER"), std::string::npos) << text;
  ASSERT_FALSE(list_in(text).empty()) << text;
  EXPECT_TRUE(list_in(text).back().starts_with("softmax: softmax_rows_kernel<")) << text;
}

// A copy that was queued in time and never ran: asking whether it has run must not say so.
TEST_F(LostDevice, WaitsForAQueueThrow) {
  const Tensor y = softmax(draw_there({4, 32}), -1);
  const std::shared_ptr<std::byte> to = context().pinned(y.bytes());
  const Event copied = evict(y, to);
  (void)cudaDeviceSynchronize();
  EXPECT_FALSE(copied.is_reached());
  for (int i = 0; i < 2; ++i) expect_said(thrown_by([&] { copied.wait(); }), {"cudaErrorIllegalAddress"});
  RankContext::current().drain_queues();
  expect_said(thrown_by([&] { copied.wait(); }), {"cudaErrorIllegalAddress"});
}

// What a file or a peer would be given is what was there before.
TEST_F(LostDevice, HostWorkBehindAQueueFails) {
  const Tensor y = softmax(draw_there({4, 32}), -1);
  const std::shared_ptr<std::byte> to = context().pinned(y.bytes());
  const Event copied = evict(y, to);
  Queue& disk = RankContext::current().queue("disk");
  disk.wait(copied);
  bool is_saved = false;
  const Event saved = disk.submit({.name = "save", .run = [&is_saved] { is_saved = true; }});
  expect_said(thrown_by([&] { saved.wait(); }), {"cudaErrorIllegalAddress", "disk save"});
  EXPECT_FALSE(is_saved);
}

// Libraries have statuses of their own, which hide it.
TEST_F(LostDevice, AProductThatNoticesItSaysTheSame) {
  for (const bool before : {false, true}) {  // its algorithm is chosen now, or was
    const RankScope rank;
    start(/*blocking=*/false);
    const Tensor y = draw_there({16, 16});
    if (before) (void)matmul(y, y);
    fail_unnoticed(y);
    expect_said(thrown_by([&] { (void)matmul(y, y); }), {"cuda:0 is lost", "queued EARLIER", "softmax_rows_kernel"});
  }
}

TEST_F(LostDevice, CudnnThatNoticesItSaysTheSame) {
  if (!cuda::describe_cudnn().starts_with("9.")) GTEST_SKIP() << "cuDNN: " << cuda::describe_cudnn();
  const Tensor x = draw_there({1, 2, 6, 8}, DType::bf16);
  const auto attention = [&] {
    Tensor in[] = {x, x, x};
    (void)call_op(op::scaled_dot_product_attention, in, AttentionAttrs{.scale = 0.3, .causal = true});
  };
  attention();
  fail_unnoticed(x);
  expect_said(thrown_by(attention), {"cuda:0 is lost", "queued EARLIER", "softmax_rows_kernel"});
}

}  // namespace
}  // namespace sherd::testing
