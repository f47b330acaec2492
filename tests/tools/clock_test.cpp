// Steps of a run as its ghosts write them down, played on clusters. Oracles: seconds of links by closed forms, those of
// a 7 B Llama on 16 cards in two hosts, and the peaks that ghosts predict.
#include <gtest/gtest.h>

#include <ctime>

#include "runtime/exec/price_json.h"
#include "runtime/exec/simulate.h"
#include "runtime/exec/timeline_recording.h"
#include "tests/support/test_data.h"
#include "tests/tools/tiny_run.h"
#include "tools/train/ghost_training.h"

namespace sherd::testing {

using namespace train;

namespace {

double cpu_seconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

/// A settled step of a rank, and what the ghost's accounts say of it.
struct ClockedStep {
  Timeline timeline;
  CategoryBytes peak{};
  std::int64_t bytes = 0;
};
ClockedStep clocked_step(const TrainConfig& config, int rank, int ranks, std::int64_t vocabulary) {
  ClockedStep step;
  std::optional<TimelineRecording> recording;
  const int settled = config.plan.compiled ? 3 : 1;
  predict_peak(config, rank, ranks, vocabulary,
               {.evaluates = false, .observe = [&](TrainStep&, int updates) {
                  const Accounting& account = RankContext::current().allocator(config.plan.device).accounting();
                  if (updates == settled)
                    recording.emplace(step.timeline, TimelineRecording::Site{rank, ranks, config.plan.device, "dp"});
                  if (updates != settled + 1) return;
                  recording.reset();
                  step.peak = account.peak();
                  step.bytes = account.total_peak();
                }});
  return step;
}

/// Llama-2-7B, 2 sequences of 4096 on each of 16 ranks, bf16 with f32 masters and reductions.
TrainConfig llama_7b(const std::string& strategy, const std::string& mesh) {
  TrainConfig config;
  config.vocabulary = "chars";
  config.batch = 32;
  config.model = {.style = "llama", .layers = 32, .heads = 32, .width = 4096, .hidden = 11008, .sequence = 4096};
  config.plan.strategy = strategy;
  config.plan.mesh = mesh;
  config.plan.param_dtype = DType::bf16;
  config.plan.reduce_dtype = DType::f32;
  config.plan.device = Device::cuda(0);
  resolve(config);
  return config;
}

/// Cards of 440 TFLOP/s in products, and the bandwidths of the three fabrics.
Cluster two_hosts(double nic_bytes_per_second, int nics) {
  FabricModel in, out;
  in.name = "in";
  in.link = {0, 1e-6, 362e9};
  out.name = "out";
  out.link = {0, 1e-6, nic_bytes_per_second};
  out.nics = nics;
  return {.device = parse_device_model(R"({"device": "card", "memory_bytes": 80e9, "launch_s": 2e-6,
            "flops": {"bf16": 692e12, "f32": 60e12}, "read_bytes_per_s": 2.7e12, "peak_flops": 989e12,
            "source": "as peers compute it"})",
                                       "card"),
          .hosts = {2, 8},
          .in = in,
          .out = out};
}

double axis_seconds(const Simulation& s, std::string_view axis) {
  double seconds = 0;
  for (const Simulation::Part& part : s.axes)
    if (part.name == axis) seconds += part.seconds;
  return seconds;
}

constexpr std::int64_t kLlamaVocabulary = 32000;

// The table of three fabrics: seconds of links, in f32 sums.
TEST(Clock, LinksOf7BOn16TakeWhatTheClosedFormSays) {
  const Timeline full = clocked_step(llama_7b("full_shard", "dp=16"), 0, 16, kLlamaVocabulary).timeline;
  const Timeline hybrid = clocked_step(llama_7b("hybrid_shard", "replicate=2,dp=8"), 0, 16, kLlamaVocabulary).timeline;
  struct Fabric {
    double nic;
    int nics;
    double full, outer;
  };
  for (const Fabric& f : {Fabric{45e9, 8, 0.140, 0.074}, {45e9, 1, 1.12, 0.600}, {11e9, 1, 4.56, 2.45}}) {
    const Cluster cluster = two_hosts(f.nic, f.nics);
    EXPECT_NEAR(axis_seconds(simulate(full, cluster), "dp"), f.full, 0.02 * f.full) << f.nic << " x " << f.nics;
    EXPECT_NEAR(axis_seconds(simulate(hybrid, cluster), "replicate"), f.outer, 0.02 * f.outer)
        << f.nic << " x " << f.nics;
    EXPECT_NEAR(axis_seconds(simulate(hybrid, cluster), "dp"), 0.13, 0.01) << "within a host, whatever is between";
  }
}

// The verdicts at 0.86 s of compute: a tie, HYBRID, HYBRID with accumulation.
TEST(Clock, VerdictsOf7BOn16AreThoseOfTheExam) {
  const auto play = [](const TrainConfig& config, double nic, int nics) {
    const Timeline step = clocked_step(config, 0, 16, kLlamaVocabulary).timeline;
    Cluster cluster = two_hosts(nic, nics);
    const double micro = static_cast<double>(config.batch) / 32;
    cluster.software = 0.86 * micro / simulate(step, cluster).of(0).compute;
    return simulate(step, cluster).seconds;
  };
  const TrainConfig full = llama_7b("full_shard", "dp=16");
  TrainConfig hybrid = llama_7b("hybrid_shard", "replicate=2,dp=8");
  EXPECT_NEAR(play(full, 45e9, 8), play(hybrid, 45e9, 8), 0.02 * play(full, 45e9, 8)) << "a tie";
  EXPECT_LT(play(hybrid, 45e9, 1), 0.95 * play(full, 45e9, 1));
  EXPECT_LT(play(hybrid, 11e9, 1), 0.95 * play(full, 11e9, 1));
  // 0.86 s are 45 % of the peak, and 40 % are 0.9675 s for each micro-batch: reached where the sum over replicas, of
  // which the last backward hides a part, is spread over enough of them.
  const auto each = [&](int micro_batches) {
    hybrid.batch = 32 * micro_batches;
    hybrid.plan.micro_batches = micro_batches;
    return play(hybrid, 11e9, 1) / micro_batches;
  };
  EXPECT_GT(each(3), 0.9675);
  EXPECT_LT(each(24), 0.9675);
}

class ClockOfRunsTest : public ::testing::Test {
 protected:
  TempDir dir_;
  TrainConfig gpt_ = tiny_config(dir_.write("text.txt", tiny_text()));
};

// What ghosts count is what the timeline adds up to, by category and to the byte.
TEST_F(ClockOfRunsTest, PeaksAreThoseOfTheGhost) {
  for (const std::string_view strategy : nn::strategy_names())
    for (const bool compiled : {false, true}) {
      TrainConfig config = gpt_;
      config.plan.strategy = strategy;
      config.plan.compiled = compiled;
      config.plan.mesh = nn::strategy(strategy).needs_replicas ? "replicate=2,dp=2" : "dp=4";
      SCOPED_TRACE(fmt::format("{}{}", strategy, compiled ? ", captured" : ""));
      for (const int rank : {0, 3}) {
        const ClockedStep step = clocked_step(config, rank, 4, kTinyVocabulary);
        Cluster cluster = two_hosts(45e9, 1);
        cluster.hosts = {1, 4};
        const Simulation s = simulate(step.timeline, cluster);
        EXPECT_EQ(describe(s.peaks[0].peak), describe(step.peak));
        EXPECT_EQ(s.peaks[0].bytes, step.bytes);
      }
    }
}

TEST_F(ClockOfRunsTest, RanksWriteTimelinesOfOneHash) {
  for (const std::string mesh : {"dp=4", "dp=2,tp=2"}) {
    TrainConfig config = gpt_;
    config.plan.mesh = mesh;
    const std::uint64_t hash = clocked_step(config, 0, 4, kTinyVocabulary).timeline.hash();
    for (const int rank : {1, 2, 3})
      EXPECT_EQ(clocked_step(config, rank, 4, kTinyVocabulary).timeline.hash(), hash) << mesh << " rank " << rank;
  }
}

// A captured step makes the same calls on the same bytes, and waits where eager waits.
TEST_F(ClockOfRunsTest, ACapturedStepComputesAndMovesWhatEagerDoes) {
  TrainConfig config = gpt_;
  config.plan.mesh = "dp=4";
  Cluster cluster = two_hosts(45e9, 1);
  cluster.hosts = {1, 4};
  const Timeline eager = clocked_step(config, 0, 4, kTinyVocabulary).timeline;
  config.plan.compiled = true;
  const Timeline captured = clocked_step(config, 0, 4, kTinyVocabulary).timeline;
  EXPECT_DOUBLE_EQ(captured.flops(), eager.flops());
  EXPECT_EQ(captured.items.size(), eager.items.size());
  const Simulation a = simulate(eager, cluster), b = simulate(captured, cluster);
  EXPECT_DOUBLE_EQ(axis_seconds(a, "dp"), axis_seconds(b, "dp"));
  EXPECT_NEAR(a.seconds, b.seconds, 0.1 * a.seconds);
}

// Loose bounds on CPU seconds, since a machine at work multiplies them. Alone, a ghost's row of 7 B on 16 ranks is to
// take 15 ms, and to play 1,024 ranks 1 s, 16,384 ranks 10 s.
TEST(Clock, IsQuick) {
  const TrainConfig config = llama_7b("full_shard", "dp=16");
  double recording = 1, playing = 1;
  for (int i = 0; i < 10; ++i) {
    const double start = cpu_seconds();
    const Timeline step = clocked_step(config, 0, 16, kLlamaVocabulary).timeline;
    const double recorded = cpu_seconds();
    simulate(step, two_hosts(45e9, 1));
    recording = std::min(recording, recorded - start);
    playing = std::min(playing, cpu_seconds() - recorded);
  }
  std::printf("a ghost's row of 7 B: %.1f ms to record, %.2f ms to play\n", 1e3 * recording, 1e3 * playing);
  EXPECT_LT(recording, 0.15);
  for (const int ranks : {1024, 16384}) {
    TrainConfig wide = config;
    wide.plan.mesh = fmt::format("dp={}", ranks);
    wide.batch = 2 * ranks;
    const double before = cpu_seconds();
    const Timeline t = clocked_step(wide, 0, ranks, kLlamaVocabulary).timeline;
    std::vector<double> factors;
    std::srand(1);
    for (int r = 0; r < ranks; ++r) factors.push_back(std::rand() % 100 == 0 ? 1.3 : 1);
    Cluster cluster = two_hosts(45e9, 8);
    cluster.hosts = {ranks / 8, 8};
    const double recorded_wide = cpu_seconds();
    const Simulation s = simulate(t, cluster, {.compute = factors});
    const double played_wide = cpu_seconds();
    std::printf("%d ranks: %.1f ms recorded, %.0f ms played, step %.3f s\n", ranks, 1e3 * (recorded_wide - before),
                1e3 * (played_wide - recorded_wide), s.seconds);
    EXPECT_LT(played_wide - recorded_wide, ranks == 1024 ? 4 : 40);
  }
}

}  // namespace
}  // namespace sherd::testing
