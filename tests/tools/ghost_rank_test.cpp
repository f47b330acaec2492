// What a rank of a large job is predicted to hold, by arithmetic: a Llama of 8 B parameters on 512 ranks.
#include "tools/bench/training.h"

#include <gtest/gtest.h>

#include <fstream>

#include "compile/compile.h"
#include "compile/ir/text/print.h"
#include "tests/parallel/nets.h"
#include "tools/bench/child.h"

namespace sherd::bench {
namespace {

using testing::held;
using enum MemoryCategory;

constexpr int kDp = 64, kTp = 8;
constexpr std::int64_t kWidth = 4096, kKeys = 1024, kHidden = 14336, kWords = 128256, kLayers = 32;

/// How much of n elements part r of `parts` holds.
std::int64_t share(std::int64_t n, int parts, int r) {
  const std::int64_t most = (n + parts - 1) / parts;
  return std::clamp<std::int64_t>(n - r * most, 0, most);
}

/// Elements of a model whose matrices are sharded over `tp`, and what is left of each along its rows over `dp`. `tp`
/// and `dp` are this rank's coordinates, or say that an axis does not shard.
struct Elements {
  static constexpr int kWhole = -1;
  int dp, tp;
  std::int64_t rows(std::int64_t n) const { return dp == kWhole ? n : share(n, kDp, dp); }
  std::int64_t part(std::int64_t n) const { return share(n, kTp, tp); }
  std::int64_t colwise(std::int64_t out, std::int64_t in) const { return rows(part(out)) * in; }
  std::int64_t rowwise(std::int64_t out, std::int64_t in) const { return rows(out) * part(in); }

  std::int64_t norm() const { return rows(kWidth); }
  std::int64_t block() const {
    const std::int64_t attention = colwise(kWidth, kWidth) + 2 * colwise(kKeys, kWidth) + rowwise(kWidth, kWidth);
    return attention + 2 * colwise(kHidden, kWidth) + rowwise(kWidth, kHidden) + 2 * norm();
  }
  std::int64_t root() const { return 2 * colwise(kWords, kWidth) + norm(); }
  std::int64_t all() const { return kLayers * block() + root(); }
};

void expect_bytes_of_rank(int rank) {
  SCOPED_TRACE(rank);
  const Elements here{rank / kTp, rank % kTp}, gathered{Elements::kWhole, rank % kTp};
  GhostRank ghost(bench_model("llama8b"), "dp=64,tp=8", rank);
  const std::int64_t f32 = 4, bf16 = 2;
  EXPECT_EQ(held(parameters), f32 * here.all());
  EXPECT_EQ(held(optimizer), 0);
  Accounting& account = RankContext::current().allocator().accounting();
  for (int step = 0; step < 2; ++step) {
    account.reset_peaks();
    ghost.training().forward_backward(ghost.tokens(), ghost.tokens());
    // Norms see a part of the sequence: their gradients are summed over tp in a buffer of all norms.
    EXPECT_EQ(held(gradients), f32 * (here.all() + (2 * kLayers + 1) * here.norm()));
    // The root, a block, and the next one, which is gathered meanwhile; forward knows the next one from the second step
    // on.
    EXPECT_EQ(account.peak(unsharded), bf16 * (gathered.root() + 2 * gathered.block()));
    ghost.training().optimizer().step_and_clear();
    EXPECT_EQ(held(parameters), f32 * here.all());
    EXPECT_EQ(held(optimizer), 2 * f32 * here.all());
    EXPECT_EQ(held(gradients), 0);
    EXPECT_EQ(held(unsharded), 0);
  }
  ghost.step();
  EXPECT_EQ(held(optimizer), 2 * f32 * here.all());
}

TEST(GhostRank, AnEightBillionLlamaOn512RanksHoldsItsShares) {
  for (const int rank : {0, 133, 504, 511}) expect_bytes_of_rank(rank);
}

// A recording leaves out what ranks hold of a tensor; all the rest is the same on all of them.
TEST(GhostRank, RanksRecordOneProgram) {
  std::vector<std::string> program;
  for (const int rank : {0, 133, 511}) {
    GhostRank ghost(bench_model("llama8b"), "dp=64,tp=8", rank);
    CompiledStep step(
        [&](std::span<const Tensor> in) { return std::vector{ghost.training().update_eagerly(in[0], in[0]).loss}; });
    for (const char* how : {"ran eagerly", "recorded", "recorded", "replayed"}) {
      step({{ghost.tokens()}});
      EXPECT_TRUE(step.why().starts_with(how)) << step.why();
    }
    const std::vector<std::string> own = lines(step.graph()->program, {.rank_neutral = true});
    if (program.empty()) program = own;
    ASSERT_EQ(own.size(), program.size());
    for (std::size_t i = 0; i < own.size(); ++i) ASSERT_EQ(own[i], program[i]) << "line " << i + 1;
  }
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // their allocators keep what was freed
TEST(GhostRank, TakesLittleMemoryOfItsOwn) {
  std::ofstream("/proc/self/clear_refs") << "5";  // the peak starts anew
  const std::int64_t before = process_memory_bytes("VmRSS");
  {
    GhostRank ghost(bench_model("llama8b"), "dp=64,tp=8", 300);
    for (int i = 0; i < 3; ++i) ghost.step();
  }
  EXPECT_LE(process_memory_bytes("VmHWM") - before, 50'000'000);
}
#endif

TEST(GhostRank, AnyMeshThatATrainingRunTakes) {
  EXPECT_EQ(ranks_of_mesh("replicate=4,dp=64,tp=8"), 2048);
  GhostRank ghost(bench_model("tiny_llama"), "replicate=4,dp=64", 255);
  ghost.step();
  EXPECT_EQ(RankContext::current().rank_text, "rank 255 of 256");
}

}  // namespace
}  // namespace sherd::bench
