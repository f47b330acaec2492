// Long waits say who is missing. Nobody sleeps: the rank that is missing comes when it is told that it was missed.
#include "runtime/comm/group/wait_notice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>

#include "runtime/comm/board/shm_group.h"
#include "runtime/comm/group/host_group.h"
#include "runtime/comm/job/rank.h"
#include "runtime/comm/store/rendezvous_file.h"
#include "tests/comm/backends.h"
#include "tests/support/processes.h"
#include "tests/support/temp_dir.h"

namespace sherd::testing {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::HasSubstr;

/// Keeps the first text, of the start or of calls, and raises the flag. On a busy machine the start may take long too.
struct Listener {
  explicit Listener(SharedFlag& raised, bool of_calls = false) : flag(raised), hears_calls(of_calls) {}
  SharedFlag& flag;
  const bool hears_calls;
  std::mutex mutex;
  std::string first;
  WaitNotice notice() {
    return {.after = 20ms, .say = [this](const std::string& text) {
              if (hears_calls && text.find(" at the start ") != text.npos) return;
              const std::lock_guard lock(mutex);
              if (first.empty()) first = text;
              flag.set();
            }};
  }
};

TEST(NoticeClock, SpeaksAtOnceTwiceAndFourTimesTheAge) {
  const NoticeClock::Clock::time_point start{};
  NoticeClock clock(start, 5s);
  std::string when;
  for (int second = 0; second < 300; ++second)
    if (clock.is_due(start + std::chrono::seconds(second))) when += fmt::format("{} ", second);
  EXPECT_EQ(when, "5 10 20 40 80 140 200 260 ");
  EXPECT_FALSE(NoticeClock().is_due(NoticeClock::Clock::now()));
}

TEST(WaitNotice, ACollectiveNamesWhoIsMissingAndOneRankSpeaks) {
  SharedFlag missed, second_spoke;
  const std::vector<RankEnd> ends = fork_ranks(3, [&](Store& store, int rank) {
    Listener listener(rank == 0 ? missed : second_spoke, true);
    const auto group = make_shm_group(store, rank, 3, {.notice = listener.notice()});
    group->host().barrier();
    if (rank == 2) missed.wait();
    group->host().barrier();
    if (rank == 0) {
      EXPECT_THAT(listener.first, AllOf(HasSubstr("rank 0 has waited 0."), HasSubstr(" s in barrier #2"),
                                        HasSubstr("(deadline 300 s); not there: "),
                                        HasSubstr("rank 2 (outside any collective of this group, its last call: ")));
    }
    if (rank == 2) { EXPECT_EQ(listener.first, "") << "it did not wait"; }
  });
  for (const RankEnd& end : ends) EXPECT_EQ(end.status, 0) << end.message;
}

TEST(WaitNotice, ASendNamesItsPeer) {
  SharedFlag missed;
  const std::vector<RankEnd> ends = fork_ranks(2, [&](Store& store, int rank) {
    Listener listener(missed, true);
    const auto group = make_shm_group(store, rank, 2, {.notice = listener.notice()});
    float x = 1;
    const CollectivePart part = in_place(&x, DType::f32, 1);
    if (rank == 1) {
      group->host().send({part}, 0);
      EXPECT_THAT(listener.first,
                  AllOf(HasSubstr("rank 1 has waited "), HasSubstr("send"), HasSubstr("not there: rank 0 ")));
    } else {
      missed.wait();
      group->host().recv({part}, 1);
    }
  });
  for (const RankEnd& end : ends) EXPECT_EQ(end.status, 0) << end.message;
}

TEST(WaitNotice, AtTheStartRankZeroNamesWhoHasNotCome) {
  SharedFlag missed;
  const std::vector<RankEnd> ends = fork_ranks(3, [&](Store& store, int rank) {
    Listener listener(missed);
    if (rank == 2) missed.wait();
    make_shm_group(store, rank, 3,
                   {.rendezvous_deadline = 30s, .notice = rank == 0 ? listener.notice() : WaitNotice{}});
    if (rank == 0) {
      EXPECT_THAT(listener.first, AllOf(HasSubstr("rank 0 has waited 0."), HasSubstr(" s at the start for ranks "),
                                        HasSubstr("2 to come, which have given no sign of life yet (deadline 30 s)")));
    }
  });
  for (const RankEnd& end : ends) EXPECT_EQ(end.status, 0) << end.message;
}

TEST(WaitNotice, AtTheStartOthersNameRankZero) {
  SharedFlag missed;
  const std::vector<RankEnd> ends = fork_ranks(2, [&](Store& store, int rank) {
    Listener listener(missed);
    if (rank == 0) missed.wait();
    make_shm_group(store, rank, 2, {.notice = rank == 1 ? listener.notice() : WaitNotice{}});
    if (rank == 1) { EXPECT_THAT(listener.first, HasSubstr("for rank 0 to open the rendezvous")); }
  });
  for (const RankEnd& end : ends) EXPECT_EQ(end.status, 0) << end.message;
}

TEST(WaitNotice, WhoLooksForTheStoreSaysSo) {
  const TempDir dir;
  SharedFlag missed;
  Listener listener(missed);
  const std::string folder = rendezvous_folder(dir.path());
  EXPECT_THROW(await_address(folder, "job", 60ms, listener.notice()), CommError);
  EXPECT_THAT(listener.first, AllOf(HasSubstr("rank 0 to publish its store in "), HasSubstr(folder)));
  listener.first.clear();
  RankInfo nobody;
  nobody.rank = 1;
  nobody.world_size = nobody.local_world_size = 2;
  nobody.store_host = "127.0.0.1";
  nobody.store_port = 1;
  EXPECT_THROW(connect_store(nobody, 100ms, listener.notice()), CommError);
  EXPECT_THAT(listener.first, AllOf(HasSubstr("store 127.0.0.1:1: no connection for "), HasSubstr("refused")));
}

}  // namespace
}  // namespace sherd::testing
