// Faults on groups of the host.
#include "tests/comm/conformance/faults.h"

#include "runtime/comm/hosts/store_group.h"
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

}  // namespace sherd::testing
