// What ranks agree on when others have died, at each point where one may die. A test plays the launcher and the ranks
// that die: it sets their keys.
#include <thread>

#include <gtest/gtest.h>

#include "tests/support/expect_error.h"
#include "tests/tools/program_test.h"
#include "tests/tools/thread_store.h"
#include "tools/launch/survival.h"
#include "tools/train/generations.h"

namespace sherd::testing {

using namespace train;

namespace {

using std::chrono::milliseconds;
using namespace std::chrono_literals;

/// The vote of a rank that has the state.
std::string voted(std::int64_t updates, bool can_update) {
  return AttrsView(UpdateVote{.updates = updates, .can_update = can_update}).print();
}

class SurvivalVotes : public ::testing::Test {
 protected:
  void publish(int number, const std::string& ranks) { store_.set(survival_key::generation(number), ranks); }
  void vote(int number, int rank, const std::string& text) { store_.set(survival_key::vote(number, rank), text); }
  Generations of(int rank, int last = 0) { return {store_, rank, last, 20s}; }
  /// Ranks 0 and 1 agree, each on a thread of its own.
  std::pair<Agreement, Agreement> both(const UpdateVote& zero, const UpdateVote& one) {
    std::pair<Agreement, Agreement> result;
    std::thread other([&] { result.second = of(1).agree(one); });
    result.first = of(0).agree(zero);
    other.join();
    return result;
  }
  ThreadStore store_;
};

TEST_F(SurvivalVotes, AnUpdateIsMadeByAllWhoCanOrByNone) {
  publish(1, "0,1");
  const UpdateVote before{.updates = 5}, at_the_point{.updates = 5, .can_update = true}, after{.updates = 6};
  const auto [a, b] = both(at_the_point, after);
  EXPECT_EQ(a.updates, 6) << "one has made it, so all had come to the point";
  EXPECT_EQ(b.updates, 6);
  EXPECT_EQ(a.generation.number, 1);
  EXPECT_EQ(a.generation.ranks, (std::vector{0, 1}));
  EXPECT_EQ(a.has_state, (std::vector{true, true}));
  publish(2, "0,1");
  const auto decide = [&](int number, const UpdateVote& zero, const std::string& one) {
    publish(number, "0,1");
    vote(number, 1, one);
    return of(0, number - 1).agree(zero).updates;
  };
  EXPECT_EQ(decide(3, at_the_point, voted(5, true)), 6);
  EXPECT_EQ(decide(4, at_the_point, voted(5, false)), 5) << "one has lost its gradients";
  EXPECT_EQ(decide(5, before, voted(5, true)), 5);
  EXPECT_EQ(decide(6, after, voted(6, false)), 6);
  expect_error([&] { decide(7, after, voted(5, false)); }, {"6 updates", "only 5"});
  expect_error([&] { decide(8, after, "5"); }, {"is no vote"});
}

// Rank 2 dies before it has voted, or when it has: the others may have read its vote, or not.
TEST_F(SurvivalVotes, WhoDiesInTheVoteChangesNothingOfWhatOthersHaveDone) {
  const UpdateVote can{.updates = 5, .can_update = true};
  for (const std::string& last_word : {std::string(), voted(5, true), voted(5, false)}) {
    ThreadStore store;
    const auto agree = [&](int rank, int last, const UpdateVote& own) {
      return Generations(store, rank, last, 20s).agree(own);
    };
    store.set(survival_key::generation(1), "0,1,2");
    store.set(survival_key::vote(1, 1), voted(5, true));
    UpdateVote zero = can;
    int last = 0;
    if (!last_word.empty()) {  // rank 0 has read all votes, rank 1 has not
      store.set(survival_key::vote(1, 2), last_word);
      zero = {.updates = agree(0, 0, can).updates};
      EXPECT_EQ(zero.updates, last_word == voted(5, true) ? 6 : 5);
      last = 1;
    }
    Agreement one;
    store.set(survival_key::generation(2), "0,1");
    std::thread other([&] { one = agree(1, 0, can); });
    const Agreement own = agree(0, last, zero);
    other.join();
    EXPECT_EQ(own.updates, one.updates) << last_word;
    EXPECT_EQ(own.updates, last_word == voted(5, false) ? 5 : 6) << last_word;
    EXPECT_EQ(one.generation.number, 2);
  }
}

TEST_F(SurvivalVotes, ANewerGenerationEndsTheWaitForAVote) {
  publish(1, "0,1,2");
  std::thread launcher([&] {
    store_.get(survival_key::vote(1, 0), 20s);
    store_.get(survival_key::vote(1, 1), 20s);
    publish(2, "0,1");
  });
  const auto [a, b] = both({.updates = 3}, {.updates = 3});
  launcher.join();
  EXPECT_EQ(a.generation.number, 2);
  EXPECT_EQ(b.generation.number, 2);
  EXPECT_EQ(a.updates, 3);
}

TEST_F(SurvivalVotes, WhoWasStartedAgainWaitsUntilItIsNamedAndHasNoSay) {
  publish(1, "0");
  Agreement fresh;
  std::thread other([&] { fresh = of(1, 1).agree({.has_state = false}); });
  publish(2, "0");  // without it, for whatever reason
  publish(3, "0,1");
  const Agreement own = of(0, 2).agree({.updates = 9});
  other.join();
  for (const Agreement& agreement : {own, fresh}) {
    EXPECT_EQ(agreement.generation.number, 3);
    EXPECT_EQ(agreement.updates, 9);
    EXPECT_EQ(agreement.has_state, (std::vector{true, false}));
  }
}

TEST_F(SurvivalVotes, WhoIsGivenUpAndWhoIsNotNeededAreTold) {
  publish(1, "1");
  expect_error([&] { of(0).agree({.updates = 1}); }, {"has given up the replica of rank 0"});
  publish(2, survival_key::kOver);
  EXPECT_TRUE(of(0).agree({.updates = 1}).generation.is_over);
  Generations late(store_, 0, 2, 300ms);
  expect_error([&] { late.agree({.updates = 1}); }, {"has not named a group with rank 0 within 0.3 s"});
  publish(3, "0,1");
  expect_error([&] { late.agree({.updates = 1}); }, {"rank 1 has not said within 0.3 s"});
}

TEST_F(SurvivalVotes, OneOfThoseThatWaitSaysForWhom) {
  std::vector<std::string> said;
  const auto agree = [&](int rank) {
    const WaitNotice notice{.after = 1ms, .say = [&](const std::string& text) { said.push_back(text); }};
    Generations(store_, rank, 0, 300ms, notice).agree({.updates = 1});
  };
  expect_error([&] { agree(0); }, {"has not named a group"});
  ASSERT_FALSE(said.empty());
  expect_within(said[0], {"rank 0 has waited 0.", "s for the launcher to name the next group", "(deadline 0.3 s)"});
  publish(1, "0,1,2");
  vote(1, 1, voted(1, false));
  said.clear();
  expect_error([&] { agree(0); }, {"rank 2 has not said"});
  ASSERT_FALSE(said.empty());
  expect_within(said[0], {"rank 0 has waited 0.", "s for rank 2 to say how many updates it has made"});
  said.clear();
  expect_error([&] { agree(1); }, {"rank 2 has not said"});
  EXPECT_TRUE(said.empty()) << "rank 0 speaks";
}

/// Its host has gone.
class LostStore final : public Store {
 public:
  void set(std::string_view, std::string_view) override {}
  std::string get(std::string_view, milliseconds) override { throw CommError("the store is gone"); }
  std::int64_t add(std::string_view, std::int64_t) override { return 1; }
};

TEST(Generations, ALostStoreIsNoKeyThatIsMissing) {
  LostStore store;
  expect_error([&] { Generations(store, 0, 0, 20s).agree({.updates = 1}); }, {"the store is gone"});
  expect_error([&] { Generations(store, 0, 0, 20s).has_newer(); }, {"the store is gone"});
}

// ---- the launcher's part ----

/// Survival of 4 ranks in 2 replicas over a store that the test keeps.
class SurvivalOfReplicas : public ::testing::Test {
 protected:
  class Lent final : public Store {
   public:
    explicit Lent(Store& store) : store_(store) {}
    void set(std::string_view key, std::string_view value) override { store_.set(key, value); }
    std::string get(std::string_view key, milliseconds deadline) override { return store_.get(key, deadline); }
    std::int64_t add(std::string_view key, std::int64_t amount) override { return store_.add(key, amount); }

   private:
    Store& store_;
  };
  using Clock = Survival::Clock;
  using Fate = Survival::Fate;
  void announce() {
    store_.set(survival_key::kPatience, "2000");
    store_.set(survival_key::kDeadline, "20000");
    store_.set(survival_key::kReplicas, "0,1;2,3");
  }
  Fate lose(int rank, Clock::time_point now) {
    const Fate fate = survival_.lose(rank, now, &loss_);
    survival_.tell();
    return fate;
  }
  std::string named(int number) { return store_.get(survival_key::generation(number), 0ms); }

  ThreadStore store_;
  Survival survival_{std::make_unique<Lent>(store_), 4, 1s};
  Survival::Loss loss_;
  const Clock::time_point now_ = Clock::now();
  const std::vector<bool> all_ended_ = std::vector<bool>(4, true);
};

TEST_F(SurvivalOfReplicas, NobodyIsOutlivedBeforeTheJobSaysWhoIsAReplica) {
  EXPECT_EQ(lose(1, now_), Fate::ends);
  EXPECT_FALSE(survival_.is_known());
  announce();
  EXPECT_TRUE(survival_.is_known());
  EXPECT_EQ(lose(1, now_), Fate::goes_on);
}

TEST_F(SurvivalOfReplicas, AReplicaDiesAsAWholeAndComesBackWhenAllItsRanksAreReady) {
  announce();
  ASSERT_EQ(lose(1, now_), Fate::goes_on);
  EXPECT_EQ(loss_.ranks, (std::vector{0, 1}));
  EXPECT_NE(loss_.text.find("replica 0 (ranks 0, 1) is lost, 1 of 2 goes on; it starts again in 1 s"), loss_.text.npos)
      << loss_.text;
  EXPECT_EQ(named(1), "2,3");
  EXPECT_EQ(lose(0, now_), Fate::is_down);
  EXPECT_EQ(survival_.to_start(now_ + 999ms, all_ended_).size(), 0u);
  EXPECT_EQ(survival_.to_start(now_ + 1s, {true, false, true, true}).size(), 0u) << "one of them lives";
  ASSERT_EQ(survival_.to_start(now_ + 1s, all_ended_), (std::vector<std::vector<int>>{{0, 1}}));
  EXPECT_EQ(survival_.life_of(0), 2);
  EXPECT_EQ(survival_.life_of(2), 1);
  EXPECT_EQ(survival_.generation(), 1);
  store_.set(survival_key::ready(2, 0), "1");
  EXPECT_TRUE(survival_.admit(now_ + 2s).empty());
  EXPECT_FALSE(survival_.is_member(0));
  store_.set(survival_key::ready(2, 1), "1");
  EXPECT_EQ(survival_.admit(now_ + 2s).size(), 1u);
  EXPECT_EQ(named(2), "0,1,2,3");
  EXPECT_TRUE(survival_.is_member(0));
}

TEST_F(SurvivalOfReplicas, OneThatDiesWhenItStartsIsNobodysLossAndWaitsLonger) {
  announce();
  ASSERT_EQ(lose(0, now_), Fate::goes_on);
  ASSERT_EQ(survival_.to_start(now_ + 1s, all_ended_).size(), 1u);
  store_.set(survival_key::ready(2, 0), "1");
  EXPECT_EQ(lose(1, now_ + 2s), Fate::goes_on);
  EXPECT_EQ(survival_.generation(), 1) << "the members need no other group";
  EXPECT_EQ(survival_.to_start(now_ + 3999ms, all_ended_).size(), 0u);
  EXPECT_EQ(survival_.to_start(now_ + 4s, all_ended_).size(), 1u);
  store_.set(survival_key::ready(3, 1), "1");
  EXPECT_TRUE(survival_.admit(now_ + 5s).empty()) << "rank 0 was ready in an earlier life";
}

TEST_F(SurvivalOfReplicas, TheLastOneIsNotOutlived) {
  announce();
  ASSERT_EQ(lose(3, now_), Fate::goes_on);
  EXPECT_EQ(lose(0, now_), Fate::ends);
  survival_.end();
  EXPECT_EQ(named(2), survival_key::kOver);
}

TEST_F(SurvivalOfReplicas, WhoIsWaitedForTooLongIsToBeKilled) {
  announce();
  ASSERT_TRUE(survival_.is_known());
  const auto late = [&](std::chrono::seconds at) { return survival_.stragglers(now_ + at, [](int) { return true; }); };
  EXPECT_TRUE(late(10s).empty()) << "nobody waits";
  for (const int rank : {0, 1, 2}) store_.set(survival_key::waiting(0, rank), "1");
  store_.add(survival_key::num_waiting(0), 3);
  EXPECT_TRUE(late(11s).empty());
  EXPECT_TRUE(late(12s).empty());
  EXPECT_EQ(late(13s), std::vector{3});
  ASSERT_EQ(lose(3, now_ + 13s), Fate::goes_on);
  store_.set(survival_key::vote(1, 0), voted(1, false));
  EXPECT_TRUE(late(14s).empty());
  EXPECT_EQ(late(16s), std::vector{1}) << "it has not voted";
}

TEST_F(SurvivalOfReplicas, WhoLivesIsWaitedForUntilTheDeadline) {
  announce();
  ASSERT_EQ(lose(3, now_), Fate::goes_on);
  const auto late = [&](std::chrono::seconds at) { return survival_.stragglers(now_ + at, [](int) { return false; }); };
  store_.set(survival_key::vote(1, 0), AttrsView(UpdateVote{.has_state = false}).print());
  EXPECT_TRUE(late(10s).empty());
  EXPECT_TRUE(late(40s).empty()) << "newcomers wait for steps, evaluations and saves to end";
  store_.set(survival_key::vote(1, 0), voted(1, false));
  EXPECT_TRUE(late(41s).empty());
  EXPECT_TRUE(late(60s).empty());
  EXPECT_EQ(late(62s), std::vector{1});
}

TEST_F(SurvivalOfReplicas, AGroupThatAllHaveLeftIsFormedAgain) {
  announce();
  ASSERT_TRUE(survival_.is_known());
  for (int again = 0; again < 5; ++again) {
    for (const int rank : {0, 1, 2, 3}) {
      store_.set(survival_key::vote(again, rank), voted(1, false));
      store_.set(survival_key::waiting(again, rank), "1");
    }
    store_.add(survival_key::num_waiting(again), 4);
    const auto first = now_ + std::chrono::seconds(10 * again);
    for (const auto at : {first + 1s, first + 2s})
      EXPECT_TRUE(survival_.stragglers(at, [](int) { return true; }).empty());
    EXPECT_EQ(survival_.generation(), std::min(again + 1, 3)) << "calls that differ differ again";
  }
  EXPECT_EQ(named(1), "0,1,2,3");
}

}  // namespace
}  // namespace sherd::testing
