// send, recv and all_to_all. Oracle: closed forms, and the text of errors on every rank.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/comm/backends.h"

namespace sherd::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

void send(HostGroup& group, std::vector<float> data, int to) {
  group.send({in_place(data.data(), DType::f32, static_cast<std::int64_t>(data.size()))}, to);
}

std::vector<float> recv(HostGroup& group, std::size_t count, int from) {
  std::vector<float> data(count);
  group.recv({in_place(data.data(), DType::f32, static_cast<std::int64_t>(count))}, from);
  return data;
}

class Pairs : public OnAllBackends {};
INSTANTIATE_TEST_SUITE_P(Groups, Pairs, ::testing::ValuesIn(all_backends()),
                         [](const auto& param) { return param.param.name; });

TEST_P(Pairs, DifferentListsNameBothCalls) {
  run(2, [](HostGroup& group) {
    const std::string error = error_of([&] { group.rank() == 0 ? send(group, {1, 2}, 1) : (void)recv(group, 3, 0); });
    EXPECT_THAT(error, HasSubstr("rank 0 calls send #1 to rank 1 [f32 x 2], rank 1 calls recv #1 from rank 0 [f32 x "
                                 "3]; a send and its recv must agree in types and counts"));
    group.reset();
    if (group.rank() == 0) {
      send(group, {5}, 1);
    } else {
      EXPECT_EQ(recv(group, 1, 0), std::vector<float>{5});
    }
  });
}

TEST_P(Pairs, TwoSendsThatWaitForEachOtherAreNamed) {
  run(2, [](HostGroup& group) {
    if (group.rank() == 0) group.set_deadline(std::chrono::milliseconds(200));
    const std::string error = error_of([&] { send(group, {1}, 1 - group.rank()); });
    EXPECT_THAT(error, AllOf(HasSubstr("s in send #1 to rank 1 [f32 x 1] (deadline 0.2 s); not there: rank 1"),
                             HasSubstr("in send #1 to rank 0 [f32 x 1], waiting for rank 0")));
  });
}

TEST_P(Pairs, APeerThatLeavesIsNamed) {
  const auto messages = GetParam().run(3, [](HostGroup& group) {
    if (group.rank() == 0) recv(group, 1, 1);
  });
  EXPECT_THAT(messages[0], AllOf(HasSubstr("rank 1"), HasSubstr("has left the group while rank 0 waits for it in recv "
                                                                "#1 from rank 1 [f32 x 1]")));
}

TEST_P(Pairs, OneselfAndStrangersAreNoPeers) {
  run(2, [](HostGroup& group) {
    for (const int peer : {group.rank(), -1, 2}) {
      EXPECT_THROW(send(group, {1}, peer), Error);
      group.reset();
    }
  });
}

TEST_P(Pairs, AllToAllNamesCountsThatDoNotFit) {
  run(2, [](HostGroup& group) {
    std::vector<float> in(8), out(8);
    const std::vector<std::int64_t> in_counts{1, 5}, out_counts{1, group.rank() == 1 ? 5 : 4};
    const std::vector<std::int64_t> from_first{group.rank() == 1 ? 4 : 1, 5};
    const CollectivePart part{.in = {in.data()},
                              .out = {out.data()},
                              .counts = in_counts,
                              .out_counts = group.rank() == 1 ? from_first : out_counts};
    const std::string error = error_of([&] { group.all_to_all({part}); });
    EXPECT_THAT(error, ::testing::AnyOf(HasSubstr("rank 0 sends 5 elements of tensor 0 to rank 1, which expects 4"),
                                        HasSubstr("rank 1 sends 1 elements of tensor 0 to rank 0, which expects 4")));
  });
}

}  // namespace
}  // namespace sherd::testing
