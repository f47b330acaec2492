// One rank calls between two steps what the others do not: all are told soon, by the names of the public functions.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <thread>
#include <vector>

#include "compile/compile.h"
#include "nn/checkpoint/training_state.h"
#include "nn/optim/adamw.h"
#include "nn/optim/clip.h"
#include "nn/parallel/shard/wrap/fully_shard.h"
#include "nn/parallel/shard/wrap/summon.h"
#include "runtime/autograd/autograd.h"
#include "runtime/comm/board/shm_group.h"
#include "runtime/comm/board/thread_group_options.h"
#include "runtime/comm/group/agree.h"
#include "runtime/comm/job/world.h"
#include "runtime/exec/context.h"
#include "tests/parallel/nets.h"
#include "tests/support/processes.h"
#include "tests/support/temp_dir.h"

namespace sherd::testing {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr auto kLook = 20ms;
using Body = std::function<void(const std::shared_ptr<ProcessGroup>& group)>;

void run_as_threads(int count, const Body& body) {
  auto groups = make_thread_groups(count, {.look = kLook});
  std::vector<std::thread> threads;
  for (auto& each : groups)
    threads.emplace_back([&body, group = std::move(each)] {
      const RankScope scope;
      set_world_group(group);
      body(group);
    });
  for (std::thread& thread : threads) thread.join();
}

void run_as_processes(int count, const Body& body) {
  const std::vector<RankEnd> ends = fork_ranks(count, [&](Store& store, int rank) {
    const RankScope scope;
    const auto group = make_shm_group(store, rank, count, {.look = kLook});
    set_world_group(group);
    body(group);
  });
  for (const RankEnd& end : ends) EXPECT_EQ(end.status, 0) << end.message;
}

struct Training {
  Net net{kThreeBlocks};
  std::unique_ptr<nn::AdamW> optimizer{};
  std::string dir;
  std::shared_ptr<ProcessGroup> group;
};

/// What only the last rank calls, and what the other ranks are told that it did.
struct Lonely {
  const char* function;
  std::function<void(Training& training)> call;
};

const Lonely kLonely[] = {
    {"save_checkpoint",
     [](Training& t) { nn::save_checkpoint(t.dir, {}, nn::training_state(t.net, t.optimizer.get()), *t.group); }},
    {"clip_grad_norm", [](Training& t) { (void)nn::clip_grad_norm(*t.optimizer, 1.0).item<float>(); }},
    {"gather_text", [](Training& t) { gather_text(*t.group, "here"); }},
    {"full_tensor", [](Training& t) { (void)full_tensor(t.net.parameters()[0]->sharded_value()).to_vector<float>(); }},
};

void expect_told(const std::shared_ptr<ProcessGroup>& group, const Lonely& lonely, const std::string& dir,
                 bool is_captured) {
  Training training{.dir = dir, .group = group};
  shard(training.net, DeviceMesh(group));
  training.net.materialize(nn::Seed{3});
  training.optimizer = std::make_unique<nn::AdamW>(training.net.parameters());
  const Tensor x = batch_of(2, 6, 0, "x");
  const auto body = [&] {
    Tensor loss = mean(square(training.net(x)));
    backward(loss);
    return loss;
  };
  auto compiled = compile(body);
  const auto step = [&] {
    training.optimizer->clear_gradients();
    const Tensor loss = is_captured ? compiled() : body();
    (void)loss.item<float>();
  };
  for (int i = 0; i < 4; ++i) step();  // the ranks compare what they have captured, in the fourth at the latest
  std::string error = "no CommError";
  try {
    if (group->rank() == group->size() - 1) lonely.call(training);
    step();
    for (nn::Parameter* p : training.net.parameters()) (void)p->grad().local().raw();
  } catch (const CommError& caught) { error = caught.what(); }
  EXPECT_THAT(
      error, AllOf(HasSubstr("wait for each other, and none can go on"), HasSubstr(fmt::format("{})", lonely.function)),
                   HasSubstr("(unshard"), HasSubstr("collectives must be called by all ranks")))
      << lonely.function << (is_captured ? ", captured" : "");
}

TEST(Deadlock, ACallOfOneRankAloneIsNamedToAllThreads) {
  for (const Lonely& lonely : kLonely)
    for (const bool is_captured : {false, true}) {
      const TempDir dir;
      run_as_threads(is_captured ? 3 : 2,
                     [&](const auto& group) { expect_told(group, lonely, dir.path(), is_captured); });
    }
}

TEST(Deadlock, ACallOfOneRankAloneIsNamedToAllProcesses) {
  for (const Lonely& lonely : kLonely) {
    const TempDir dir;
    run_as_processes(2, [&](const auto& group) { expect_told(group, lonely, dir.path(), false); });
  }
}

}  // namespace
}  // namespace sherd::testing
