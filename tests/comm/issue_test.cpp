// Collectives that are queued: on buffers, on a queue's own lane, with what they borrow. Oracle: closed forms.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/comm/group/ghost_group.h"
#include "runtime/comm/group/lanes.h"
#include "runtime/exec/context.h"
#include "runtime/op/rows/ops.h"
#include "tests/comm/backends.h"
#include "tests/support/expect_error.h"
#include "tests/support/ranks.h"

namespace sherd::testing {
namespace {

using comm::CommOp;
using ::testing::HasSubstr;

template <class T>
Buffer buffer(std::vector<T>& values, std::size_t from = 0, std::size_t count = SIZE_MAX) {
  count = std::min(count, values.size() - from);
  return {values.data() + from, static_cast<std::int64_t>(count * sizeof(T)), Device::cpu()};
}

Buffer bytes_of(const Tensor& t) { return {t.storage()->address(), t.storage()->bytes(), t.device()}; }

Queue& queue(std::string_view name) { return RankContext::current().queue(name); }

class Issue : public ::testing::TestWithParam<Backend> {
 protected:
  void run(int ranks, const RankBody& body) const {
    const RankBody with_context = [&](HostGroup& group) {
      RankScope scope;
      body(group);
    };
    for (const std::string& message : GetParam().run(ranks, with_context)) EXPECT_EQ(message, "");
  }
};
INSTANTIATE_TEST_SUITE_P(Groups, Issue, ::testing::ValuesIn(all_backends()),
                         [](const auto& param) { return param.param.name; });

// The thread that touches the bytes waits, and gets an error of the call, which names the subject.
TEST_P(Issue, LendsWhatItUses) {
  run(2, [](HostGroup& group) {
    const Tensor shard = full({4}, group.rank() + 1.0), gathered = zeros({8});
    const Loan loans[] = {{shard.storage(), false}, {gathered.storage(), true}};
    const CollectiveSite site{.queue = queue(kGatherQueue), .name = "unshard", .subject = "blocks.0", .loans = loans};
    const Collective call{.op = CommOp::all_gather,
                          .parts = {{.in = bytes_of(shard), .out = bytes_of(gathered), .counts = {4, 4}}}};
    group.issue(call, site);
    EXPECT_EQ(gathered.to_vector<float>(), (std::vector<float>{1, 1, 1, 1, 2, 2, 2, 2}));
    CollectiveSite other = site;
    if (group.rank() == 1) other.subject = "blocks.1";
    group.issue(call, other);
    EXPECT_THAT(error_of([&] { (void)gathered.raw(); }),
                ::testing::AllOf(HasSubstr("blocks.0"), HasSubstr("blocks.1")));
    group.reset();
    EXPECT_THAT(error_of([&] { (void)gathered.raw(); }), HasSubstr("blocks.1")) << "as long as nobody writes them anew";
    const Tensor again = zeros({8});
    const Loan other_loans[] = {{shard.storage(), false}, {again.storage(), true}};
    group.issue(
        {.op = CommOp::all_gather, .parts = {{.in = bytes_of(shard), .out = bytes_of(again), .counts = {4, 4}}}},
        {.queue = queue(kGatherQueue), .name = "unshard", .loans = other_loans});
    EXPECT_EQ(again.to_vector<float>()[7], 2);
  });
}

TEST_P(Issue, CountsLaunchesAndFullBuffers) {
  run(2, [](HostGroup& group) {
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

// What moving the elements writes: a copy where the input is elsewhere, and no tables of counts.
TEST_P(Issue, CountsTheBytesThatItWrites) {
  run(2, [](HostGroup& group) {
    std::vector<float> in(100, 1), out(100, -1);
    std::vector<double> from(6, 2), to(6, -1);
    const CollectiveSite site{.queue = queue(kReduceQueue), .name = "reduce"};
    const auto copied = [&](Collective call, auto item) {
      const std::int64_t before = (group.counts().*item).copied;
      group.issue(std::move(call), site);
      site.queue.record().wait();
      return (group.counts().*item).copied - before;
    };
    const auto flat = [&](CommOp op, std::vector<float>& source) {
      return Collective{.op = op, .parts = {{.in = buffer(source), .out = buffer(out), .counts = {100}}}, .peer = 1};
    };
    for (const CommOp op : {CommOp::all_reduce, CommOp::broadcast}) {
      const auto item = op == CommOp::all_reduce ? &CommCounts::all_reduce : &CommCounts::broadcast;
      const std::int64_t in_place = copied(flat(op, out), item), apart = copied(flat(op, in), item);
      const bool has_input = op == CommOp::all_reduce || group.rank() == 1;
      EXPECT_EQ(apart - in_place, has_input ? 400 : 0) << static_cast<int>(op);
    }
    EXPECT_EQ(out, std::vector<float>(100, 1)) << "the root's";
    const Collective swap{
        .op = CommOp::all_to_all,
        .parts = {
            {.in = buffer(from), .out = buffer(to), .dtype = DType::f64, .counts = {3, 3}, .out_counts = {3, 3}}}};
    EXPECT_EQ(copied(swap, &CommCounts::all_to_all), 2 * 6 * 8) << "to memory that peers read and from there";
  });
}

/// A gather of `shard`s to `gathered`, both small.
Collective gather_of(const Tensor& shard, const Tensor& gathered, int ranks) {
  const std::vector<std::int64_t> counts(static_cast<std::size_t>(ranks), shard.numel());
  return {.op = CommOp::all_gather, .parts = {{.in = bytes_of(shard), .out = bytes_of(gathered), .counts = counts}}};
}

/// Issues it on the queue "gather".
void issue_gather(HostGroup& group, const Tensor& shard, const Tensor& gathered) {
  const Loan loans[] = {{shard.storage(), false}, {gathered.storage(), true}};
  group.issue(gather_of(shard, gathered, group.size()),
              {.queue = queue(kGatherQueue), .name = "gather", .loans = loans});
}

// Rank 0 does not look at its result before all others have looked at theirs.
TEST_P(Issue, SmallCallsArePublishedWhenTheyAreIssued) {
  SharedFlag has_all[2];
  run(3, [&](HostGroup& group) {
    const Tensor shard = full({4}, group.rank() + 1.0), gathered = zeros({12});
    issue_gather(group, shard, gathered);
    if (group.rank() == 0)
      for (const SharedFlag& flag : has_all) flag.wait();
    EXPECT_EQ(gathered.to_vector<float>(), (std::vector<float>{1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3}));
    if (group.rank() > 0) has_all[group.rank() - 1].set();
  });
}

// Chains of small and large calls on two queues, looked at late or at once, by ranks of different habits.
TEST_P(Issue, SmallAndLargeCallsKeepTheirOrder) {
  run(2, [](HostGroup& group) {
    const int me = group.rank();
    for (int round = 0; round < 100; ++round) {
      const std::int64_t count = round % 7 == 3 ? 5000 : 8;
      const double x = round + 1000.0 * me;
      const Tensor shard = full({count}, x), gathered = zeros({2 * count}), sums = zeros({count}), next = zeros({16});
      issue_gather(group, shard, gathered);
      if (round % (2 + me) == 0) { EXPECT_EQ(gathered.to_vector<float>().back(), round + 1000); }
      const Loan loans[] = {{gathered.storage(), false}, {sums.storage(), true}};
      group.issue({.op = CommOp::reduce_scatter,
                   .parts = {{.in = bytes_of(gathered), .out = bytes_of(sums), .counts = {count, count}}}},
                  {.queue = queue(kReduceQueue), .name = "reduce", .loans = loans});
      issue_gather(group, full({8}, x + 0.5), next);
      if (round % (3 - me) == 0) { EXPECT_EQ(next.to_vector<float>()[0], round + 0.5); }
      EXPECT_EQ(sums.to_vector<float>()[0], 2 * (round + 1000.0 * me));
      EXPECT_EQ(next.to_vector<float>()[15], round + 1000.5);
    }
  });
}

// The queue "disk" waits for a gather that nobody else looks at.
TEST_P(Issue, OtherQueuesWaitForSmallCalls) {
  run(2, [](HostGroup& group) {
    for (int round = 0; round < 20; ++round) {
      const Tensor shard = full({4}, group.rank() + round), gathered = zeros({8});
      issue_gather(group, shard, gathered);
      float saved = -1;
      const Loan loan{gathered.storage(), false};
      queue("disk")
          .submit({.name = "save",
                   .run = [&saved, from = reinterpret_cast<float*>(gathered.storage()->address())] { saved = from[7]; },
                   .loans = {&loan, 1}})
          .wait();
      EXPECT_EQ(saved, 1 + round);
    }
  });
}

TEST_P(Issue, CallsThatWereNotLookedAtEndWithAReset) {
  run(2, [](HostGroup& group) {
    const Tensor shard = full({4}, group.rank() + 1.0);
    for (int round = 0; round < 3; ++round) {
      const Tensor gathered = zeros({8}), again = zeros({8});
      issue_gather(group, shard, gathered);
      group.barrier();
      if (group.rank() == round % 2) group.abort("enough");
      group.reset();
      EXPECT_THAT(error_of([&] { (void)gathered.raw(); }), HasSubstr("the group was reset"));
      issue_gather(group, shard, again);
      EXPECT_EQ(again.to_vector<float>()[7], 2);
    }
  });
}

// A barrier that all have entered is over, even for a rank that has yet to see it while another aborts and resets. More
// ranks than CPUs: who waits sleeps, and looks for reasons to stop when it wakes.
TEST_P(Issue, WhoAbortsAfterABarrierDoesNotEndIt) {
  run(5, [](HostGroup& group) {
    for (int round = 0; round < 200; ++round) {
      group.barrier();
      if (group.rank() == round % 5) group.abort("enough");
      group.reset();
    }
  });
}

// The queue "disk" makes the gather's own thread end the call, while the rank's thread resets the group: either the
// call ends first and has all parts, or there is no such call any more.
TEST_P(Issue, AResetMeetsTheThreadThatEndsACall) {
  run(2, [](HostGroup& group) {
    const Tensor shard = full({4}, group.rank() + 1.0);
    for (int round = 0; round < 100; ++round) {
      const Tensor gathered = zeros({8}), again = zeros({8});
      issue_gather(group, shard, gathered);
      error_of([&] { group.barrier(); });  // the other's abort below may come to a rank that has not left it yet
      float saved = -1;
      const Loan loan{gathered.storage(), false};
      const Event end = queue("disk").submit(
          {.name = "save",
           .run = [&saved, from = reinterpret_cast<float*>(gathered.storage()->address())] { saved = from[7]; },
           .loans = {&loan, 1}});
      if (group.rank() == round % 2) group.abort("enough");
      group.reset();
      const std::string error = error_of([&] { end.wait(); });
      if (error == "no CommError") {
        EXPECT_EQ(saved, 2);
      } else {
        EXPECT_THAT(error, HasSubstr("the group was reset"));
      }
      error_of([&] { (void)gathered.raw(); });
      issue_gather(group, shard, again);
      EXPECT_EQ(again.to_vector<float>()[7], 2);
    }
  });
}

// A rank that gathers at once on the queue's lane meets one that was only issued.
TEST_P(Issue, AWholeCallMeetsASplitOne) {
  run(2, [](HostGroup& group) {
    const Tensor shard = full({4}, group.rank() + 1.0), gathered = zeros({8});
    for (int round = 0; round < 10; ++round) {
      if (group.rank() == round % 2) group.lane(kGatherQueue).run(gather_of(shard, gathered, 2));
      else issue_gather(group, shard, gathered);
      EXPECT_EQ(gathered.to_vector<float>()[7], 2);
      fill_into(gathered, 0);
    }
    EXPECT_EQ(group.lane(kGatherQueue).counts().all_gather.calls, 10);
  });
}

TEST_P(Issue, MistakesWithBlocksAreNamed) {
  run(1, [](HostGroup& group) {
    std::vector<float> values(12);
    const Buffer all{values.data(), 48, Device::cpu()}, apart{values.data() + 6, 24, Device::cpu()};
    Queue& gathers = queue(kGatherQueue);
    const auto refuse = [&](Collective call, std::initializer_list<std::string_view> parts) {
      expect_error([&] { group.issue(call, {.queue = gathers, .name = "gather"}); }, parts);
    };
    refuse({.op = CommOp::all_gather, .parts = {{.in = apart, .out = all, .counts = {6}, .blocks = 4}}},
           {"all_gather", "tensor 0", "count of 6", "4 blocks"});
    refuse({.op = CommOp::all_gather, .parts = {{.in = apart, .out = all, .counts = {6}, .blocks = 0}}},
           {"tensor 0 is of 0 blocks"});
    refuse({.op = CommOp::all_gather, .parts = {{.in = all, .out = all, .counts = {6}, .blocks = 2}}},
           {"in 2 blocks", "its input lies in its output"});
    refuse({.op = CommOp::all_reduce, .parts = {{.in = all, .out = all, .counts = {6}, .blocks = 2}}},
           {"all_reduce", "is of 2 blocks"});
  });
}

TEST(IssueErrors, BuffersMustFitAndLieWhereTheGroupMoves) {
  run_ranks(2, [](const std::shared_ptr<ProcessGroup>& group) {
    std::vector<float> all(4);
    const auto issue = [&](Buffer in, Buffer out, std::vector<std::int64_t> counts) {
      group->issue({.op = CommOp::all_gather, .parts = {{.in = in, .out = out, .counts = std::move(counts)}}},
                   {.queue = queue(kGatherQueue), .name = "gather"});
    };
    const Buffer half = buffer(all, 0, 2), whole = buffer(all);
    expect_error([&] { issue(half, half, {2, 2}); }, {"all_gather", "the output of tensor 0 has 8 bytes", "take 16"});
    expect_error([&] { issue({}, whole, {2, 2}); }, {"the input of tensor 0", "no address"});
    expect_error([&] { issue(half, whole, {2}); }, {"1 counts", "takes 2", "2 ranks"});
    expect_error([&] { issue(half, whole, {2, -1}); }, {"a count of -1"});
    Buffer there = whole;
    there.device = Device::cuda(0);
    expect_error([&] { issue(half, there, {2, 2}); }, {"on cuda:0", "on cpu", "one device"});
    Buffer part = half;
    part.device = Device::cuda(0);
    EXPECT_FALSE(group->supports(Device::cuda(0)));
    expect_error([&] { issue(part, there, {2, 2}); }, {"on cuda:0 in a thread group", "it moves host memory", "to()"});
    issue(half, whole, {2, 2});  // nothing was sent before
    queue(kGatherQueue).record().wait();
  });
}

// The cast of the last elements would overwrite those of the middle before they are read.
TEST(IssueErrors, WhatIsCastMayNotLieInItsResult) {
  run_ranks(2, [](const std::shared_ptr<ProcessGroup>& group) {
    std::vector<float> all(64);
    const auto issue = [&](CommOp op, Buffer in, Buffer out, DType from, DType to) {
      group->issue({.op = op, .parts = {{.in = in, .out = out, .dtype = from, .counts = {32, 32}, .out_dtype = to}}},
                   {.queue = queue(kGatherQueue), .name = "gather"});
    };
    const Buffer whole = buffer(all), half = buffer(all, 0, 32), quarter = buffer(all, 16, 16);
    expect_error([&] { issue(CommOp::all_gather, quarter, whole, DType::bf16, DType::f32); },
                 {"all_gather: tensor 0 is cast from bf16 to f32", "its input lies in its output", "of its own"});
    expect_error([&] { issue(CommOp::reduce_scatter, half, half, DType::bf16, DType::f32); },
                 {"reduce_scatter", "cast"});
    issue(CommOp::all_gather, half, whole, DType::f32, DType::f32);
    std::vector<float> own(16);
    issue(CommOp::all_gather, buffer(own), whole, DType::bf16, DType::f32);
    queue(kGatherQueue).record().wait();
  });
}

TEST(IssueErrors, GhostsLendAndMoveNothing) {
  RankScope scope("rank 1 of 2", {.ghost = true});
  const auto group = make_ghost_group(1, 2);
  const Tensor x = Tensor::empty({4}, DType::f32);
  const Loan loans[] = {{x.storage(), true}};
  EXPECT_TRUE(group->supports(Device::cuda(3)));
  group->issue({.op = CommOp::reduce_scatter, .parts = {{.in = bytes_of(x), .out = bytes_of(x), .counts = {2, 2}}}},
               {.queue = queue(kReduceQueue), .name = "reduce", .loans = loans});
  EXPECT_TRUE(x.storage()->is_lent());
  x.storage()->wait_to_read();
  EXPECT_FALSE(x.storage()->is_lent_for_writing());
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

TEST(Abilities, OfGroupsOfTheHost) {
  const auto group = make_single_group();
  const Abilities& abilities = group->abilities();
  EXPECT_TRUE(abilities.casts && abilities.uneven && abilities.ordered_sum && abilities.accumulate && abilities.lists);
  EXPECT_TRUE(abilities.blocks && abilities.same_counts && abilities.nan_wins);
  EXPECT_TRUE(group->supports(Device::cpu()));
  EXPECT_EQ(&group->host(), group.get());
}

}  // namespace
}  // namespace sherd::testing
