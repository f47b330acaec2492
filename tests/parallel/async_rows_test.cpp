// Collectives as rows are submitted, not awaited: their result is waited for where it is first touched.
#include <gtest/gtest.h>
#include <unistd.h>

#include <future>

#include "dtensor/api.h"
#include "runtime/autograd/autograd.h"
#include "runtime/comm/board/exposed.h"
#include "runtime/comm/group/host_group.h"
#include "runtime/exec/context.h"
#include "runtime/exec/queue.h"
#include "runtime/op/rows/collective_attrs.h"
#include "runtime/op/rows/ops.h"
#include "tests/parallel/nets.h"
#include "tests/support/expect_error.h"
#include "tests/support/near.h"
#include "tests/support/processes.h"
#include "tests/support/ranks.h"
#include "tests/support/thread_state.h"

namespace sherd::testing {
namespace {

using Group = std::shared_ptr<ProcessGroup>;

void redistribute_is_waited_on_first_access(const Group& group) {
  const DeviceMesh mesh(group);
  const Tensor whole_value = batch_of(7, 3, 0, "x");
  const Tensor shard = distribute(whole_value, mesh, Shard(0));
  const Tensor full = full_tensor(shard);
  const Tensor column = narrow(full, 1, 1, 1);  // a view of a result that may not be there yet
  if (group->size() > 1) { EXPECT_TRUE(full.storage()->is_lent()); }
  EXPECT_TRUE(same_bits(contiguous(column), contiguous(narrow(whole_value, 1, 1, 1))));
  EXPECT_FALSE(full.storage()->is_lent());
  EXPECT_TRUE(same_bits(full, whole_value));
}

TEST(Redistribute, F126_ResultIsWaitedForOnFirstAccess) {
  for (int ranks : {1, 2, 3, 4}) run_ranks(ranks, redistribute_is_waited_on_first_access);
  run_processes(2, redistribute_is_waited_on_first_access);
}

TEST(Redistribute, F126_ChainsOfCollectivesNeedNoWaitInBetween) {
  run_ranks(3, [](const Group& group) {
    const Tensor x = batch_of(6, 2, static_cast<std::uint64_t>(group->rank()), "x");
    const Tensor sums = all_gather(reduce_scatter(x, *group), *group, 6);
    EXPECT_TRUE(sums.storage()->is_lent());
    EXPECT_TRUE(near(sums, batch_of(6, 2, 0, "x") + batch_of(6, 2, 1, "x") + batch_of(6, 2, 2, "x")));
  });
}

// The peer comes only after this rank has gone on: with a blocking row both would be stuck.
TEST(Redistribute, F126_RanksGoOnWhileACollectiveIsInFlight) {
  std::promise<void> gone_on;
  std::shared_future<void> signal = gone_on.get_future().share();
  run_ranks(2, [&](const Group& group) {
    const Tensor x = full({4}, static_cast<double>(group->rank() + 1));
    if (group->rank() == 1) signal.wait();
    const Tensor sum = all_reduce(x, *group);
    if (group->rank() == 0) gone_on.set_value();
    EXPECT_EQ(sum.to_vector<float>(), (std::vector<float>{3, 3, 3, 3}));
  });
}

TEST(Redistribute, F126_ErrorsAreRaisedOnFirstAccessWithThePlaceOfTheCall) {
  run_ranks(2, [](const Group& group) {
    const Tensor x = zeros({4});
    if (group->rank() == 1) {
      group->abort("no more data");
      return;
    }
    RankContext::current().module_path = RankContext::current().intern("head");
    const Tensor sum = all_reduce(x, *group);
    RankContext::current().module_path = nullptr;
    expect_error([&] { neg(sum); }, {"no more data", "collective all_reduce", "head"});
  });
}

TEST(Redistribute, F126_AnErrorIsNotLostWhereTheResultWentOn) {
  run_ranks(2, [](const Group& group) {
    if (group->rank() == 1) {
      group->abort("no more data");
      return;
    }
    const Tensor sum = all_reduce(zeros({4}), *group);
    // Thrown by the gather, if the sum has failed when it is issued, or by reading what it was to bring.
    expect_error([&] { all_gather(sum, *group, 8).to_vector<float>(); }, {"no more data"});
    expect_error([&] { sum.to_vector<float>(); }, {"no more data", "collective all_reduce"});
  });
}

// Rows that communicate leave the order of their bytes to their queue, but what is added to a destination is added
// here.
TEST(CollectiveRows, DestinationsThatAreAddedToWaitForWhoReadsThem) {
  RankScope scope;
  const std::shared_ptr<ProcessGroup> group = make_single_group();
  const Tensor sum = full({4}, 5.0);
  float seen = 0;
  std::promise<void> entered, opened;
  const Loan loan{sum.storage(), false};
  RankContext::current().queue("disk").submit({.name = "save",
                                               .run =
                                                   [&, from = sum.data<float>()] {
                                                     entered.set_value();
                                                     opened.get_future().wait();
                                                     seen = from[0];
                                                   },
                                               .loans = {&loan, 1}});
  entered.get_future().wait();
  auto opener = std::async(std::launch::async, [&opened, rank = ::gettid()] {
    await_sleep(rank);
    opened.set_value();
  });
  Tensor in[] = {full({4}, 1.0)};
  call_op_into(op::all_reduce, in, CollectiveAttrs{.group = name_group(group)}, sum, true);
  opener.get();
  EXPECT_EQ(seen, 5) << "written while it was read";
  EXPECT_EQ(sum.to_vector<float>(), (std::vector<float>{6, 6, 6, 6}));
}

TEST(CommTimes, WhatComputeCoversIsNotExposed) {
  run_ranks(2, [](const Group& group) {
    group->host().shape_link({.bytes_per_second = 1e9, .seconds = 20e-3});
    const CommTimes start = comm_times(*group);
    const Tensor sum = all_reduce(full({4}, 1.0), *group);  // two steps: 40 ms
    sum.to_vector<float>();
    const CommTimes waited = comm_times(*group) - start;
    EXPECT_GE(waited.total, 0.04);
    EXPECT_GE(waited.exposed, 0.03);
    const Tensor hidden = all_reduce(full({4}, 1.0), *group);
    while (!hidden.storage()->last_write().is_reached()) batch_of(16, 16, 0, "x");  // computes until it is there
    hidden.to_vector<float>();
    const CommTimes covered = comm_times(*group) - start - waited;
    EXPECT_GE(covered.total, 0.04);
    EXPECT_LT(covered.exposed, 0.01);
  });
}

}  // namespace
}  // namespace sherd::testing
