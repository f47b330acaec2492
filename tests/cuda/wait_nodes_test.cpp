// Waits as nodes, on a device: in a recorded graph they are no work, and queues of the device that use what the graph
// reads and writes are waited for; where a step's own work goes to queues, it is replayed node by node. Oracle: the
// same step run eagerly on the device.
#include <gtest/gtest.h>

#include "compile/compile.h"
#include "compile/ir/analysis/numbers.h"
#include "compile/ir/builder.h"
#include "nn/optim/adamw.h"
#include "nn/optim/clip.h"
#include "runtime/autograd/autograd.h"
#include "runtime/comm/group/staged_group.h"
#include "runtime/exec/device_queue.h"
#include "runtime/op/rows/ops.h"
#include "runtime/op/rows/wait_attrs.h"
#include "tests/compile/tiny_net.h"
#include "tests/cuda/cuda_test.h"
#include "tests/parallel/nets.h"
#include "tests/support/compile_once.h"
#include "tests/support/near.h"
#include "tests/support/ranks.h"

namespace sherd::testing {
namespace {

using WaitNodes = cuda::CudaTest;
using Group = std::shared_ptr<ProcessGroup>;
using Mode = CompiledStep::Mode;

bool same_values(const Tensor& a, const Tensor& b) {
  return same_bits(to(a.local(), Device::cpu()), to(b.local(), Device::cpu()));
}

std::int64_t num_waits(const ir::Program& program) {
  return std::ranges::count_if(program.nodes, [](const ir::GraphNode& node) { return node.op->traits.waits; });
}

// A pass: waits for everything that a node reads, and to write what it writes in place, before each node.
void wait_before_all(ir::Program& program) {
  std::vector<ir::GraphNode> nodes;
  for (ir::GraphNode& node : program.nodes) {
    for (const bool to_write : {false, true}) {
      ir::GraphNode wait = node_beside(node, op::wait, WaitAttrs{to_write});
      const auto num_inputs = to_write ? static_cast<std::size_t>(node.num_mutated) : node.in.size();
      for (std::size_t i = 0; i < num_inputs; ++i)
        if (node.in[i].defined()) wait.in.push_back(node.in[i]);
      if (!wait.in.empty()) nodes.push_back(std::move(wait));
    }
    nodes.push_back(std::move(node));
  }
  program.nodes = std::move(nodes);
  compute_lifetimes(program);
  write_numbers(program);
}

// A queue of the device reads each parameter into the host's memory; the next step must not overwrite it before.
class ReadsOfParameters {
 public:
  explicit ReadsOfParameters(const TinyNet& net) : net_(net) {}

  void start() {
    auto& queue = static_cast<DeviceQueue&>(RankContext::current().queue("offload", kCuda));
    read_.clear();
    for (const auto& param : net_.params) {
      const Tensor tensor = param->value().local();
      const std::int64_t bytes = tensor.bytes();
      read_.push_back(RankContext::current().device(kCuda).pinned(bytes));
      const Loan loan{tensor.storage(), false};
      last_ = queue.submit({.name = "evict",
                            .run = [&queue, bytes, to = read_.back().get(),
                                    from = tensor.storage()->address()] { queue.stream().to_host(to, from, bytes); },
                            .loans = {&loan, 1}});
    }
  }
  std::vector<std::vector<float>> finish() {
    last_.wait();
    std::vector<std::vector<float>> values;
    for (std::size_t i = 0; i < read_.size(); ++i) {
      const auto* const first = reinterpret_cast<const float*>(read_[i].get());
      values.emplace_back(first, first + net_.params[i]->value().numel());
    }
    return values;
  }

 private:
  const TinyNet& net_;
  std::vector<std::shared_ptr<std::byte>> read_;
  Event last_;
};

TEST_F(WaitNodes, AGraphOfTheDeviceHoldsNoneAndWaitsForQueuesThatUseItsBytes) {
  TinyNet eager(kCuda), plain(kCuda), waiting(kCuda);
  auto without = compile_once([&](const Tensor& x, const Tensor& y) { return plain.train(x, y); });
  CompileOptions options;
  options.passes.push_back({"wait_before_all", [](ir::Program& p, ir::PassContext&) { wait_before_all(p); }});
  auto with = compile_once([&](const Tensor& x, const Tensor& y) { return waiting.train(x, y); }, options);
  ReadsOfParameters reads(waiting);
  for (int i = 0; i < 10; ++i) {
    for (TinyNet* net : {&eager, &plain, &waiting}) net->begin(i);
    const Tensor x = to(TinyNet::x(i), kCuda), y = to(TinyNet::y(i), kCuda);
    reads.start();
    const Tensor got = with(x, y);
    const std::vector<std::vector<float>> before = reads.finish();
    for (std::size_t p = 0; p < eager.params.size(); ++p)
      EXPECT_EQ(before[p], eager.params[p]->value().to_vector<float>()) << "overwritten before it was read, step " << i;
    EXPECT_TRUE(same_values(got, eager.train(x, y))) << "step " << i;
    without(x, y);
  }
  for (std::size_t p = 0; p < eager.params.size(); ++p)
    EXPECT_TRUE(same_values(waiting.params[p]->value(), eager.params[p]->value())) << eager.params[p]->name();
  EXPECT_GT(num_waits(with.graph()->program), 10);
  EXPECT_EQ(num_waits(without.graph()->program), 0);
  EXPECT_NE(with.why().find("by cuda:0 in one call"), std::string::npos) << with.why();
  EXPECT_EQ(with.why(), without.why()) << "as many nodes on the device";
}

// A model on the ranks of a staged group, whose collectives go to the queues "collective", "gather" and "reduce" of the
// device.
struct ShardedTraining {
  explicit ShardedTraining(const Group& group) : mesh(group, "dp") {
    shard(net, mesh);
    net.materialize(nn::Seed{3}, cuda::device_of_rank(group->rank()));
    optimizer = std::make_unique<nn::AdamW>(net.parameters(), nn::AdamW::Options{.lr = 0.01});
  }
  Tensor step(const Tensor& x, const Tensor& y) {
    const Tensor loss = mean_square(net(x), y);
    backward(loss);
    nn::clip_grad_norm(*optimizer, 1.0);
    optimizer->step_and_clear();
    return loss;
  }
  DeviceMesh mesh;
  Net net{std::vector<std::int64_t>{6, 10, 7, 9, 5}};
  std::unique_ptr<nn::AdamW> optimizer;
};

TEST_F(WaitNodes, WaitForQueuesOfTheDeviceInAStepOfSeveralRanks) {
  run_ranks(2, [](const Group& host) {
    const Group group = make_staged_group(host);
    const Device there = cuda::device_of_rank(group->rank());
    ShardedTraining eager(group), captured(group);
    auto step = compile_once([&](const Tensor& x, const Tensor& y) { return captured.step(x, y).detach(); });
    for (std::uint64_t i = 0; i < 5; ++i) {
      const std::uint64_t at = 10 * i + static_cast<std::uint64_t>(group->rank());
      const Tensor x = to(batch_of(4, 6, at, "x"), there), y = to(batch_of(4, 5, at, "y"), there);
      EXPECT_TRUE(same_values(step(x, y), eager.step(x, y))) << "step " << i << " " << step.why();
    }
    EXPECT_EQ(step.mode(), Mode::replay) << step.why();
    EXPECT_GT(num_waits(step.graph()->program), 0);
    const std::vector<nn::Parameter*> expected = eager.net.parameters(), got = captured.net.parameters();
    for (std::size_t i = 0; i < got.size(); ++i)
      EXPECT_TRUE(same_values(got[i]->sharded_value(), expected[i]->sharded_value())) << got[i]->name();
  });
}

}  // namespace
}  // namespace sherd::testing
