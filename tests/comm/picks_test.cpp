// Picks that are made by timing: one for all ranks of a job. Oracle: which rank's pick each rank has.
#include "runtime/exec/picks.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "runtime/comm/job/shared_picks.h"
#include "runtime/comm/store/tcp_store.h"
#include "runtime/comm/store/tcp_store_server.h"
#include "runtime/tensor/error.h"

namespace sherd::testing {
namespace {

TEST(Picks, AreMadeOnceAndKept) {
  Picks picks;
  int made = 0;
  const auto make = [&] { return std::to_string(++made); };
  EXPECT_EQ(picks.find_or_make("a = b", make), "1");
  EXPECT_EQ(picks.find_or_make("a = b", make), "1");
  EXPECT_EQ(picks.find_or_make("c", make), "2");
  EXPECT_EQ(picks.text(), "a = b = 1\nc = 2\n");
  Picks resumed;
  resumed.load("c = 7\nno pick\n");
  resumed.load(picks.text());
  EXPECT_EQ(resumed.find("a = b"), "1");
  EXPECT_EQ(resumed.find("c"), "7") << "what a rank has stays";
  EXPECT_EQ(resumed.find("d"), std::nullopt);
}

TEST(Picks, OfAJobAreThoseOfTheRankThatComesFirst) {
  constexpr int kRanks = 4;
  const TcpStoreServer server({});
  std::atomic<int> made = 0;
  std::vector<std::string> found(kRanks);
  std::vector<std::thread> ranks;
  for (int r = 0; r < kRanks; ++r)
    ranks.emplace_back([&, r] {
      Picks picks;
      const auto store = std::make_shared<TcpStore>(TcpStoreOptions{.port = server.port()});
      picks.share_by(share_over([&] { return store; }));
      for (const char* key : {"a", "b"})
        found[static_cast<std::size_t>(r)] += picks.find_or_make(key, [&] { return std::to_string(++made); });
    });
  for (std::thread& rank : ranks) rank.join();
  EXPECT_EQ(made, 2) << "once for each key";
  for (const std::string& picks : found) EXPECT_EQ(picks, "12");
}

TEST(Picks, OfThreadsAreThoseOfTheOneThatComesFirst) {
  constexpr std::size_t kRanks = 4;
  const Picks::Share share = share_among_threads();
  std::atomic<int> made = 0;
  std::vector<std::string> found(kRanks);
  std::vector<std::thread> ranks;
  for (std::size_t r = 0; r < kRanks; ++r)
    ranks.emplace_back([&, r] {
      Picks picks;
      picks.share_by(share);
      for (const char* key : {"a", "b"}) found[r] += picks.find_or_make(key, [&] { return std::to_string(++made); });
    });
  for (std::thread& rank : ranks) rank.join();
  EXPECT_EQ(made, 2) << "once for each key";
  for (const std::string& picks : found) EXPECT_EQ(picks, "12");
  Picks failing, other;
  failing.share_by(share);
  other.share_by(share);
  EXPECT_THROW(failing.find_or_make("c", []() -> std::string { throw Error("out of memory"); }), Error);
  EXPECT_EQ(other.find_or_make("c", [] { return "own"; }), "own");
}

// The others do not wait for one that has failed, nor for a job that is over.
TEST(Picks, OfARankThatFailsAreMadeByTheOthers) {
  const TcpStoreServer server({});
  std::shared_ptr<Store> store = std::make_shared<TcpStore>(TcpStoreOptions{.port = server.port()});
  Picks failing, other, late;
  for (Picks* picks : {&failing, &other, &late}) picks->share_by(share_over([&] { return store; }));
  EXPECT_THROW(failing.find_or_make("a", []() -> std::string { throw Error("out of memory"); }), Error);
  EXPECT_EQ(other.find_or_make("a", [] { return "own"; }), "own");
  store.reset();
  EXPECT_EQ(late.find_or_make("b", [] { return "alone"; }), "alone");
}

}  // namespace
}  // namespace sherd::testing
