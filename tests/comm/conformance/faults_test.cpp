// Faults on groups of the host.
#include "tests/comm/conformance/faults.h"

#include "runtime/comm/hosts/store_family.h"
#include "runtime/comm/store/tcp_store.h"
#include "runtime/comm/store/tcp_store_server.h"
#include "tests/support/expect_error.h"

namespace sherd::testing {

INSTANTIATE_TEST_SUITE_P(Groups, Faults, ::testing::ValuesIn(host_engines()),
                         [](const auto& param) { return param.param.name; });

TEST(StoreGroup, AResetThatIsCalledAgainStillWaitsForTheOthers) {
  const TcpStoreServer server({});
  const auto connect = [&server] { return std::make_unique<TcpStore>(TcpStoreOptions{.port = server.port()}); };
  const auto group = make_store_group(0, 2, {.connect = connect, .deadline = std::chrono::milliseconds(50)});
  for (int again = 0; again < 2; ++again)
    expect_error([&] { group->reset(); }, {"reset: rank 1 has not called it within 0.05 s"});
}

// What a device does with the others is asked of ranks that may be through with it.
TEST(StoreGroup, ARankThatLeavesWellIsNoFailureAndOneThatDoesNotIs) {
  const TcpStoreServer server({});
  const auto connect = [&server] { return std::make_unique<TcpStore>(TcpStoreOptions{.port = server.port()}); };
  const StoreGroupOptions options{.connect = connect, .deadline = std::chrono::seconds(30)};
  const auto stays = make_store_group(0, 3, options);
  auto leaves = make_store_group(1, 3, options);
  const auto watch = connect();
  leaves.reset();
  watch->get(comm::gone_key(1), std::chrono::seconds(30));
  EXPECT_EQ(stays->host().failure(), "");
  try {
    const auto fails = make_store_group(2, 3, options);
    throw Error("the loss is NaN");
  } catch (const Error&) {}
  watch->get(comm::gone_key(2), std::chrono::seconds(30));
  EXPECT_EQ(stays->host().failure(), "rank 2 has left the group, or its process has ended");
  expect_error([&] { stays->host().barrier(); }, {"rank 1 has left the group"});
}

}  // namespace sherd::testing
