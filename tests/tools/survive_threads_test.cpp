// Runs that outlive replicas, on threads: ranks die at an op of a step that the test chooses, while a group is formed,
// or when they come back. A launcher of the test names the groups. The losses must be those of one rank with the same
// rows.
#include <atomic>
#include <condition_variable>
#include <filesystem>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <thread>

#include <gtest/gtest.h>

#include "nn/checkpoint/format/saves.h"
#include "runtime/comm/board/thread_group.h"
#include "tests/support/op_trap.h"
#include "tests/tools/one_rank_run.h"
#include "tests/tools/thread_store.h"
#include "tests/tools/tiny_run.h"
#include "tools/train/survive.h"

namespace sherd::testing {

using namespace train;

namespace {

using namespace std::chrono_literals;

/// Where a rank dies in one of its lives.
struct Death {
  int rank = 0, life = 1;
  std::int64_t after_step = 0;  ///< from then on
  std::string op{};             ///< at the first of these; empty: when it forms a group
  bool in_next_group = false;   ///< not in the first
  bool is_elsewhere = false;    ///< where the test says
};

/// Replicas of one rank each, which are threads; what the launcher does when one dies.
class Job {
 public:
  Job(TrainConfig config, int ranks, std::vector<Death> plan, bool comes_back)
      : config_(std::move(config)), deaths_(std::move(plan)), comes_back_(comes_back) {
    for (int rank = 0; rank < ranks; ++rank) members_.push_back(rank);
    ranks_ = ranks;
  }
  /// Returns when all threads have ended.
  void run() {
    {
      const std::lock_guard lock(mutex_);
      for (int rank = 0; rank < ranks_; ++rank) start(rank, 1);
    }
    for (std::size_t i = 0;; ++i) {
      std::thread thread;
      {
        const std::lock_guard lock(mutex_);
        if (i == threads_.size()) break;
        thread = std::move(threads_[i]);
      }
      thread.join();
    }
  }
  /// Asked by each rank after each step; it may end the rank by an Error.
  std::function<bool(int rank, std::int64_t updates)> asks_to_save = [](int, std::int64_t) { return false; };
  void lose_store() { store_.lose(); }
  /// As the ranks that lived to the end have seen them.
  std::vector<std::vector<StepOfRun>> runs;
  std::vector<std::vector<StepMetrics::Regroup>> regroups;
  int deaths = 0;
  std::string reasons;  ///< of them

 private:
  void start(int rank, int life) {
    const int generation = generation_;
    threads_.emplace_back([this, rank, life, generation] { live(rank, life, generation); });
  }

  void live(int rank, int life, int generation) {
    std::map<std::int64_t, StepOfRun> steps;
    std::vector<StepMetrics::Regroup> told;
    const Death* const death = death_of(rank, life);
    Survivor survivor({.config = config_,
                       .rank = rank,
                       .ranks = ranks_,
                       .life = life,
                       .last_generation = generation,
                       .store = &store_,
                       .look_every = 0ms,
                       .form = [this](const GroupOrder& order) { return form(order); }});
    const auto prepare = [&](ProcessGroup&) {
      if (death && death->op.empty() && !death->is_elsewhere && (life > 1 || !steps.empty()))
        fail("the end of rank {}", rank);
    };
    const auto train = [&](Trainer& trainer) {
      std::optional<OpTrap> trap;
      const bool traps_steps = death && !death->op.empty() && !death->in_next_group;
      if (death && death->in_next_group && !steps.empty()) trap.emplace(death->op);
      const auto observe = [&](const StepMetrics& m) {
        steps[m.step] = {m.step, m.loss, m.replicas};
        if (m.regroup) told.push_back(*m.regroup);
        if (traps_steps && m.step >= death->after_step && !trap) trap.emplace(death->op);
        if (m.step == 6 && comes_back_) store_.get(survival_key::generation(2), 60s);  // with who has come back
      };
      trainer.run(observe, {}, [&] { return asks_to_save(rank, trainer.updates()); });
      return 0;
    };
    try {
      survivor.run({.prepare = prepare, .train = train});
      const std::lock_guard lock(mutex_);
      if (!std::exchange(is_over_, true)) store_.set(survival_key::generation(++generation_), survival_key::kOver);
      regroups.push_back(told);
      std::vector<StepOfRun>& run = runs.emplace_back();
      for (auto& [step, each] : steps) {
        if (each.replicas.empty())
          for (int r = 0; r < ranks_; ++r) each.replicas.push_back(r);
        run.push_back(each);
      }
    } catch (const Error& error) { bury(rank, life, error.message()); }
  }

  const Death* death_of(int rank, int life) const {
    for (const Death& death : deaths_)
      if (death.rank == rank && death.life == life) return &death;
    return nullptr;
  }
  void bury(int rank, int life, const std::string& reason) {
    const std::lock_guard lock(mutex_);
    if (is_over_) return;  // it came back too late
    EXPECT_TRUE(death_of(rank, life)) << "rank " << rank << ": " << reason;
    ++deaths;
    reasons += reason + "\n";
    std::erase(members_, rank);
    publish();
    if (!comes_back_) return;
    start(rank, life + 1);
    admit_when_ready(rank, life + 1);
  }

  // The launcher's poll, as a thread.
  void admit_when_ready(int rank, int life) {
    threads_.emplace_back([this, rank, life] {
      store_.get(survival_key::ready(life, rank), std::chrono::seconds(60));
      const std::lock_guard lock(mutex_);
      if (is_over_) return;
      members_.push_back(rank);
      std::ranges::sort(members_);
      publish();
    });
  }
  void publish() { store_.set(survival_key::generation(++generation_), ranks_to_text(members_)); }

  /// Threads of one group meet here, or learn that there is a newer one.
  std::shared_ptr<ProcessGroup> form(const GroupOrder& order) {
    std::unique_lock lock(meeting_);
    const auto size = order.generation.ranks.size();
    Meeting& meeting = meetings_[order.generation.number];
    if (meeting.groups.empty()) meeting.groups = make_thread_groups(static_cast<int>(size));
    ++meeting.arrived;
    met_.notify_all();
    while (meeting.arrived < size) {
      met_.wait_for(lock, 20ms);
      if (const std::string reason = order.gives_up(); !reason.empty() && meeting.arrived < size)
        throw CommError(reason);
    }
    return std::exchange(meeting.groups[static_cast<std::size_t>(order.rank)], nullptr);
  }

  struct Meeting {
    std::vector<std::shared_ptr<ProcessGroup>> groups;
    std::size_t arrived = 0;
  };
  const TrainConfig config_;
  const std::vector<Death> deaths_;
  const bool comes_back_;
  int ranks_ = 0;
  ThreadStore store_;
  std::mutex mutex_, meeting_;
  std::condition_variable met_;
  std::map<int, Meeting> meetings_;
  std::vector<std::thread> threads_;
  std::vector<int> members_;
  int generation_ = 0;
  bool is_over_ = false;
};

class SurviveThreads : public ::testing::Test {
 protected:
  static TrainConfig config_for(const std::string& data) {
    TrainConfig config = tiny_config(data);
    config.plan.strategy = "hybrid_shard";
    config.plan.mesh = "replicate=3,dp=1";
    config.steps = 10;
    config.check_replicas = 1;
    config.deadline = 60;
    return config;
  }
  void expect_one_rank(const Job& job, int replicas, std::size_t ended) const {
    ASSERT_EQ(job.runs.size(), ended);
    std::map<std::int64_t, StepOfRun> all;
    for (const auto& run : job.runs)
      for (const StepOfRun& step : run) {
        const auto [at, is_new] = all.emplace(step.step, step);
        EXPECT_EQ(at->second.loss, step.loss) << "step " << step.step;
        EXPECT_EQ(at->second.replicas, step.replicas) << "step " << step.step;
      }
    std::vector<StepOfRun> steps;
    for (const auto& [number, step] : all) steps.push_back(step);
    ASSERT_EQ(steps.size(), 10u);
    EXPECT_LT(difference_from_one_rank(config_, steps, replicas, replicas), 1e-5);
  }
  TempDir dir_;
  TrainConfig config_ = config_for(dir_.write("text.txt", tiny_text()));
};

// In the forward, before and after all ranks have come to the point where the update is certain.
TEST_F(SurviveThreads, ARankMayDieAtAnyPointOfAStep) {
  for (const char* op : {"embedding", "embedding_backward", "power_sum", "agree_to_update", "count_step", "adamw"})
    for (const int rank : {0, 2}) {
      SCOPED_TRACE(fmt::format("rank {} at {}", rank, op));
      Job job(config_, 3, {{.rank = rank, .after_step = 3, .op = op}}, false);
      job.run();
      EXPECT_EQ(job.deaths, 1);
      expect_one_rank(job, 3, 2);
      const auto& steps = job.runs.at(0);
      EXPECT_EQ(steps.back().replicas.size(), 2u);
      EXPECT_EQ(steps.at(2).replicas.size(), 3u);
    }
}

TEST_F(SurviveThreads, OneMoreMayDieWhileTheOthersFormAGroup) {
  config_.model.dropout = 0.1;
  Job job(config_, 3, {{.rank = 1, .after_step = 3, .op = "agree_to_update"}, {.rank = 0}}, false);
  job.run();
  EXPECT_EQ(job.deaths, 2);
  expect_one_rank(job, 3, 1);
  EXPECT_EQ(job.runs[0].back().replicas, std::vector{2});
}

// No step of the second group is made to tell that the first has lost a rank.
TEST_F(SurviveThreads, WhoIsLostInAGroupThatMakesNoStepIsToldOfByTheNext) {
  Job job(
      config_, 3,
      {{.rank = 1, .after_step = 3, .op = "agree_to_update"}, {.rank = 0, .op = "embedding", .in_next_group = true}},
      false);
  job.run();
  expect_one_rank(job, 3, 1);
  ASSERT_EQ(job.regroups.at(0).size(), 1u);
  EXPECT_EQ(job.regroups[0][0].lost, (std::vector{0, 1}));
}

// Rank 0 alone is told, once, that a user wants a save; what the ranks agree on then fails.
TEST_F(SurviveThreads, ASaveThatIsAskedForWhenARankIsLostIsMade) {
  config_.save = dir_ / "saves";
  Job job(config_, 3, {{.rank = 2, .is_elsewhere = true}}, false);
  std::atomic<bool> is_asked = false;
  job.asks_to_save = [&](int rank, std::int64_t updates) {
    if (rank == 2 && updates == 4) {
      is_asked.wait(false);
      fail("the end of rank 2");
    }
    if (rank != 0 || updates != 4 || is_asked.exchange(true)) return false;
    is_asked.notify_all();
    return true;
  };
  job.run();
  expect_one_rank(job, 3, 2);
  std::vector<std::int64_t> steps;
  for (const ckpt::SavePlace& save : ckpt::list_saves(config_.save)) steps.push_back(save.step);
  EXPECT_EQ(steps, (std::vector<std::int64_t>{10, 4}));
}

TEST_F(SurviveThreads, TrainingGoesOnWithoutItsLauncherAsLongAsNobodyIsLost) {
  Job job(config_, 3, {}, false);
  job.asks_to_save = [&](int rank, std::int64_t updates) {
    if (rank == 0 && updates == 4) job.lose_store();
    return false;
  };
  job.run();
  expect_one_rank(job, 3, 3);
}

// The disk is gone when the ranks that are left form a group, and make its folder anew where it was mounted.
TEST_F(SurviveThreads, AFolderOfSavesThatIsNotTheOneBeforeIsNotUsed) {
  config_.save = dir_ / "saves";
  Job job(config_, 3,
          {{.rank = 0, .is_elsewhere = true}, {.rank = 1, .is_elsewhere = true}, {.rank = 2, .is_elsewhere = true}},
          false);
  job.asks_to_save = [&](int rank, std::int64_t updates) {
    if (rank != 2 || updates != 4) return false;
    std::filesystem::rename(config_.save, dir_ / "gone");
    fail("the end of rank 2");
  };
  job.run();
  EXPECT_EQ(job.deaths, 3);
  EXPECT_NE(job.reasons.find("is not the one that this run has claimed"), std::string::npos) << job.reasons;
  EXPECT_TRUE(ckpt::list_saves(config_.save).empty());
}

TEST_F(SurviveThreads, ARankComesBackWithTheStateOfItsPeersMemory) {
  Job job(config_, 3, {{.rank = 0, .after_step = 3, .op = "count_step"}}, true);
  job.run();
  expect_one_rank(job, 3, 3);
  EXPECT_EQ(job.runs[0].back().replicas.size(), 3u);
}

TEST_F(SurviveThreads, ARankMayDieWhenItComesBack) {
  Job job(config_, 3, {{.rank = 1, .after_step = 3, .op = "adamw"}, {.rank = 1, .life = 2}}, true);
  job.run();
  EXPECT_EQ(job.deaths, 2);
  EXPECT_GE(job.runs.size(), 2u);
}

// Each case names the replicas of 0, 1, 2 that are lost, those that are back, and those that are there after both.
TEST(Regroup, OfTwoChangesOnlyWhatIsNewIsTold) {
  using List = std::vector<int>;
  const auto expect = [](const StepMetrics::Regroup& all, const List& lost, const List& returned) {
    EXPECT_EQ(all.lost, lost);
    EXPECT_EQ(all.returned, returned);
    EXPECT_EQ(all.seconds, 3);
  };
  const auto change = [](List lost, List returned, double seconds) {
    return StepMetrics::Regroup{std::move(lost), std::move(returned), seconds};
  };
  expect(merged(change({1}, {}, 1), change({0}, {}, 2), {2}), {0, 1}, {});
  expect(merged(change({1}, {}, 1), change({}, {1}, 2), {0, 1, 2}), {1}, {1});
  expect(merged(change({1}, {1}, 1), change({1}, {}, 2), {0, 2}), {1}, {});
  expect(merged(change({}, {2}, 1), change({2}, {}, 2), {0, 1}), {}, {});  // told as lost before
}

}  // namespace
}  // namespace sherd::testing
