// The choice of algorithms on the emulated GPU, whose heuristics offer, in this order: "split_k" (0.8 s, workspace),
// "vectors" (0.6 s, addresses aligned to 16), "refused" (fails to launch) and "simple" (1 s). Oracles: those times, the
// counters of what ran, and the bits of a first run.
#include <sys/stat.h>

#include <cstdlib>

#include <gtest/gtest.h>

#include "runtime/cuda/attention/attention.h"
#include "runtime/cuda/device/context.h"
#include "runtime/cuda/gemm/blas.h"
#include "runtime/cuda/gemm/gemm.h"
#include "runtime/cuda/gemm/gemm_choice.h"
#include "runtime/exec/picks.h"
#include "tests/cuda/cuda_test.h"
#include "tests/support/emulated_gpu/control.h"
#include "tests/support/expect_error.h"
#include "tests/support/file_size_limit.h"
#include "tests/support/temp_dir.h"

namespace sherd::cuda {

namespace {

namespace fs = std::filesystem;
using sherd::testing::TempDir;

// An environment variable for a scope.
class Variable {
 public:
  Variable(const char* name, const std::string& value) : name_(name), before_(std::getenv(name)) {
    ::setenv(name, value.c_str(), 1);
  }
  ~Variable() { before_ ? ::setenv(name_, before_->c_str(), 1) : ::unsetenv(name_); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  struct Before : std::optional<std::string> {
    explicit Before(const char* value) {
      if (value) emplace(value);
    }
  };
  const char* name_;
  const Before before_;
};

// A context of what is another process, as far as choices go, with operands of a product [m, k] [k, n] in f32, `skip`
// elements off alignment.
class Product {
 public:
  explicit Product(std::int64_t m = 24, std::int64_t n = 32, std::int64_t k = 40, std::int64_t skip = 0)
      : context(device_of_another_process()),
        g{.m = m, .n = n, .k = k, .lda = k, .ldb = n, .ldc = n},
        skip_(skip * 4),
        a_(context, m * k * 4 + skip_),
        b_(context, k * n * 4 + skip_),
        c_(context, m * n * 4 + skip_) {
    fill(a_, 1);
    fill(b_, 2);
    fill(c_, 3);
    emulated::reset_counters();
  }
  void queue() { gemm(context, g, a_.data() + skip_, b_.data() + skip_, c_.data() + skip_); }
  std::vector<float> read() {
    std::vector<float> values(static_cast<std::size_t>(g.m * g.n));
    context.download(values.data(), c_.data() + skip_, g.m * g.n * 4);
    return values;
  }
  std::vector<float> run() {
    queue();
    return read();
  }
  const std::string& trouble() { return context.blas().choices().cache_trouble(); }

  Context context;
  Gemm g;

 private:
  static int device_of_another_process() {
    picks_of_rank() = Picks();
    return 0;
  }
  void fill(const Workspace& memory, unsigned seed) {
    std::vector<float> values(static_cast<std::size_t>(memory.bytes() / 4));
    std::uint32_t state = seed;
    for (float& v : values) {
      state = state * 1664525u + 1013904223u;
      v = static_cast<float>(state >> 8) / 0x1p24f;
    }
    context.upload(memory.data(), values.data(), memory.bytes());
    context.synchronize();
  }
  const std::int64_t skip_;
  Workspace a_, b_, c_;
};

// How often an algorithm ran since the operands were made.
std::int64_t ran(const std::string& algorithm) {
  const auto launches = emulated::counters().launches;
  const auto found = launches.find("cublasLtMatmul " + algorithm);
  return found == launches.end() ? 0 : found->second;
}
bool asked_heuristics() { return emulated::counters().launches.count("cublasLtMatmulAlgoGetHeuristic") > 0; }

// The one file of a cache folder, or "".
std::string cache_file(const TempDir& folder) {
  std::string file;
  if (!fs::exists(folder / "matmul")) return file;
  for (const auto& entry : fs::directory_iterator(folder / "matmul")) {
    EXPECT_EQ(file, "") << "more than one file";
    file = "matmul/" + entry.path().filename().string();
  }
  return file;
}

class GemmChoice : public CudaTest {};

TEST_F(GemmChoice, TheFastestCandidateIsFoundOnce) {
  Product product;
  const std::vector<float> first = product.run();
  EXPECT_EQ(ran("in_place_sums"), 0) << "its sums are rounded to the result's type on the way";
  EXPECT_GE(ran("split_k"), 2);
  EXPECT_GE(ran("simple"), 2);
  EXPECT_EQ(ran("refused"), 0);
  EXPECT_GT(ran("vectors"), ran("simple"));
  emulated::reset_counters();
  product.queue();
  EXPECT_EQ(emulated::counters().host_syncs, 0);
  EXPECT_EQ(product.read(), first);
  EXPECT_EQ(ran("vectors"), 1);
  EXPECT_EQ(emulated::counters().kernels, 1);
  EXPECT_FALSE(asked_heuristics());
}

TEST_F(GemmChoice, LessAlignedOperandsHaveAChoiceOfTheirOwn) {
  Product product(24, 32, 40, 1);
  product.run();
  emulated::reset_counters();
  product.run();
  EXPECT_EQ(ran("split_k"), 1) << "the fastest of those that need no aligned vectors";
}

TEST_F(GemmChoice, UntunedTakesTheFavouriteAndKeepsNothing) {
  const TempDir folder;
  const Variable cache("SHERD_CACHE", folder.path()), request("SHERD_MATMUL", "untuned");
  Product product;
  product.run();
  EXPECT_EQ(ran("split_k"), 1);
  EXPECT_EQ(emulated::counters().kernels, 1);
  EXPECT_EQ(cache_file(folder), "");
}

TEST_F(GemmChoice, InARecordingNothingIsTimed) {
  const TempDir folder;
  const Variable cache("SHERD_CACHE", folder.path());
  Product product;
  const auto graph = product.context.record([&] { product.queue(); });
  EXPECT_EQ(graph->num_nodes(), 1);
  graph->launch();
  const std::vector<float> replayed = product.read();
  EXPECT_EQ(ran("split_k"), 1);
  EXPECT_EQ(product.run(), replayed) << "a choice stays, so that eager and replayed steps agree";
  EXPECT_EQ(ran("split_k"), 2);
  EXPECT_EQ(emulated::counters().kernels, 2);
  EXPECT_EQ(cache_file(folder), "") << "what was not measured is not kept";
}

TEST_F(GemmChoice, APickOfTheJobIsTakenWithoutATiming) {
  const std::vector<float> expected = Product().run();
  const std::string picks = picks_of_rank().text();
  Product other;
  picks_of_rank().share_by([&](const std::string& key, const Picks::Make&) {
    Picks of_job;
    of_job.load(picks);
    return of_job.find(key).value();
  });
  EXPECT_EQ(other.run(), expected);
  EXPECT_EQ(ran("vectors"), 1);
  EXPECT_EQ(emulated::counters().kernels, 1);
  EXPECT_EQ(picks_of_rank().text(), picks);

  Product resumed;  // from a save
  picks_of_rank().load(picks);
  EXPECT_EQ(resumed.run(), expected);
  EXPECT_EQ(emulated::counters().kernels, 1);

  Product elsewhere;  // where the library refuses it
  picks_of_rank().share_by([&](const std::string&, const Picks::Make&) { return "no algorithm"; });
  EXPECT_EQ(elsewhere.run().size(), expected.size());
  EXPECT_EQ(ran("split_k"), 1) << "the favourite";
}

TEST_F(GemmChoice, ReproducibleRunsTimeNothing) {
  const Variable request("SHERD_REPRODUCIBLE", "1");
  Product product;
  product.run();
  EXPECT_EQ(ran("split_k"), 1);
  EXPECT_EQ(emulated::counters().kernels, 1);
  EXPECT_EQ(picks_of_rank().text(), "");
  EXPECT_EQ(attention_choice("", true), AttentionChoice::deterministic);
  EXPECT_EQ(attention_choice("own", true), AttentionChoice::own);
  sherd::testing::expect_error([] { attention_choice("fast", true); }, {"SHERD_ATTENTION is fast", "--reproducible"});
}

TEST_F(GemmChoice, TF32IsForThoseWhoAsk) {
  const std::vector<float> exact = Product().run();
  const Variable request("SHERD_MATMUL", "tf32");
  const std::vector<float> rounded = Product().run();
  EXPECT_NE(exact, rounded);
  for (std::size_t i = 0; i < exact.size(); ++i) EXPECT_NEAR(exact[i], rounded[i], 0x1p-10 * 40);
}

TEST_F(GemmChoice, UnknownRequestsAreNamed) {
  const Variable request("SHERD_MATMUL", "untuned,fastest");
  sherd::testing::expect_error([] { requested_blas_options(); }, {"'fastest'", "untuned,fastest", "'tf32'"});
}

TEST_F(GemmChoice, InfoTellsWhatIsDoneAndWhereItIsKept) {
  const TempDir folder;
  {
    const Variable cache("SHERD_CACHE", folder / "not/yet");
    EXPECT_EQ(describe_matmul(), "algorithms timed once, kept in " + folder.path() + "/not/yet/matmul");
  }
  {
    const Variable cache("SHERD_CACHE", folder.write("a_file", "") + "/below");
    EXPECT_EQ(describe_matmul(),
              "algorithms timed once, not kept: " + folder.path() + "/a_file is no folder that can be written");
  }
  const Variable cache("SHERD_CACHE", ""), request("SHERD_MATMUL", "tf32");
  EXPECT_NE(describe_matmul().find("TF32; algorithms timed once, not kept: SHERD_CACHE"), std::string::npos);
  const Variable untuned("SHERD_MATMUL", "untuned");
  EXPECT_NE(describe_matmul().find("untimed"), std::string::npos);
  const Variable wrong("SHERD_MATMUL", "fast");
  EXPECT_NE(describe_matmul().find("'fast'"), std::string::npos);
}

TEST_F(GemmChoice, WithoutMemoryForTrialsTheFavouriteMustDo) {
  Product product(1024, 1024, 2);
  product.g.accumulate = true;
  product.context.blas();
  Allocator& memory = product.context.allocator();
  memory.set_limit(memory.accounting().total());
  product.run();
  EXPECT_EQ(ran("split_k"), 1);
  EXPECT_EQ(emulated::counters().kernels, 1);
}

TEST_F(GemmChoice, AnotherProcessReadsTheChoiceAndTimesNothing) {
  const TempDir folder;
  const Variable cache("SHERD_CACHE", folder.path());
  const std::vector<float> first = Product().run();
  ASSERT_NE(cache_file(folder), "");
  Product second;
  second.queue();
  EXPECT_EQ(emulated::counters().host_syncs, 0);
  EXPECT_EQ(second.read(), first);
  EXPECT_EQ(ran("vectors"), 1);
  EXPECT_EQ(emulated::counters().kernels, 1);
  EXPECT_FALSE(asked_heuristics());
  EXPECT_EQ(second.trouble(), "");
}

TEST_F(GemmChoice, ProcessesAddToOneFile) {
  const TempDir folder;
  const Variable cache("SHERD_CACHE", folder.path());
  Product one, other(8, 8, 8);
  one.run();
  other.run();  // its context has read the empty folder
  Product third, fourth(8, 8, 8);
  third.run();
  fourth.run();
  EXPECT_FALSE(asked_heuristics());
}

TEST_F(GemmChoice, AFailedLaunchNamesTheProduct) {
  Product product;
  product.run();
  emulated::fail_call("cublasLtMatmul", cudaErrorLaunchFailure);
  sherd::testing::expect_error([&] { product.queue(); }, {"f32 f32 NN", "24x32x40", "CUBLAS_STATUS_EXECUTION_FAILED"});
}

TEST_F(GemmChoice, AFailedStartLeavesNothingBehind) {
  Context context(0);
  const std::int64_t before = context.allocator().accounting().total();
  emulated::fail_call("cublasLtCreate", cudaErrorInitializationError);
  sherd::testing::expect_error([&] { context.blas(); }, {"creating a cuBLASLt handle"});
  EXPECT_EQ(context.allocator().accounting().total(), before);
  EXPECT_NE(context.blas().handle(), nullptr);
}

// ---- what may be wrong with the file ----

// A cache that a process has made, for tests to damage.
class DamagedCache : public CudaTest {
 protected:
  DamagedCache() : cache_("SHERD_CACHE", folder_.path()) {}
  void SetUp() override {
    CudaTest::SetUp();
    if (IsSkipped()) return;
    result_ = Product().run();
    file_ = cache_file(folder_);
    text_ = folder_.read(file_);
  }
  // The next process says `why`, finds its own choice and leaves a sound file.
  void expect_fallback(const std::string& text, const std::string& why) {
    SCOPED_TRACE(why);
    folder_.write(file_, text);
    Product product;
    EXPECT_EQ(product.run(), result_);
    EXPECT_TRUE(asked_heuristics());
    EXPECT_NE(product.trouble().find(why), std::string::npos) << product.trouble();
    EXPECT_NE(product.trouble().find(folder_.path()), std::string::npos) << product.trouble();
    EXPECT_EQ(folder_.read(cache_file(folder_)), text_);
  }
  std::string replaced(const std::string& what, const std::string& by) const {
    std::string text = text_;
    return text.replace(text.find(what), what.size(), by);
  }

  TempDir folder_;
  Variable cache_;
  std::vector<float> result_;
  std::string file_, text_;
};

TEST_F(DamagedCache, FilesThatAreNoCache) {
  expect_fallback("", "is no cache");
  expect_fallback("{\"json\": true}\n", "is no cache");
  expect_fallback(std::string(5000, '\0'), "is no cache");
  expect_fallback(replaced("algorithms 1", "algorithms 2"), "is no cache");
  expect_fallback(replaced("emulated GPU", "NVIDIA H200"), "another machine ('NVIDIA H200");
}

TEST_F(DamagedCache, LinesThatAreDamaged) {
  expect_fallback(text_.substr(0, text_.size() - 4), "1 damaged line");
  expect_fallback(replaced("24x32x40", "24x32x41"), "1 damaged line");
  expect_fallback(replaced(" = ", " - "), "1 damaged line");
  const std::string header = text_.substr(0, text_.find('\n', text_.find('\n') + 1) + 1);
  expect_fallback(header + "\n\nx\n" + std::string(100000, 'y'), "4 damaged lines");
}

TEST_F(DamagedCache, AlgorithmsThatTheLibraryRefuses) {
  // A sound file whose algorithm is another library's.
  const std::string machine =
      text_.substr(text_.find('\n') + 1, text_.find('\n', text_.find('\n') + 1) - text_.find('\n') - 1);
  const std::size_t at = text_.find(machine) + machine.size() + 1;
  const std::string problem = text_.substr(at, text_.find(" = ") - at);
  fs::remove(folder_ / file_);
  AlgorithmCache foreign(folder_.path(), machine);
  ASSERT_EQ(foreign.path(), folder_ / file_);
  foreign.keep(problem, {{{1, 2, 3, 4, 5, 6, 7, 8}}, 0});
  ASSERT_NE(folder_.read(file_), text_);
  Product product;
  EXPECT_EQ(product.run(), result_);
  EXPECT_TRUE(asked_heuristics());
  EXPECT_EQ(folder_.read(file_), text_);
}

TEST_F(DamagedCache, PlacesThatAreNoFile) {
  fs::remove(folder_ / file_);
  ASSERT_EQ(::mkfifo((folder_ / file_).c_str(), 0600), 0);
  Product fifo;
  EXPECT_EQ(fifo.run(), result_);  // and does not hang
  EXPECT_NE(fifo.trouble().find("is no file"), std::string::npos) << fifo.trouble();
  EXPECT_EQ(folder_.read(file_), text_);

  fs::remove(folder_ / file_);
  fs::create_directories(folder_ / (file_ + "/inside"));
  Product directory;
  EXPECT_EQ(directory.run(), result_);
  EXPECT_NE(directory.trouble().find("is no file"), std::string::npos) << directory.trouble();
}

TEST_F(DamagedCache, FoldersThatCannotBeWritten) {
  const Variable cache("SHERD_CACHE", folder_.write("a_file", "") + "/below");
  Product product;
  EXPECT_EQ(product.run(), result_);
  EXPECT_NE(product.trouble().find("Not a directory"), std::string::npos) << product.trouble();
}

TEST_F(DamagedCache, AFullDiskLeavesTheOldFile) {
  Product product(8, 8, 8);
  {
    const sherd::testing::FileSizeLimit limit(64);
    product.run();
  }
  EXPECT_NE(product.trouble().find("not kept: File too large"), std::string::npos) << product.trouble();
  EXPECT_EQ(folder_.read(cache_file(folder_)), text_);
}

}  // namespace

}  // namespace sherd::cuda
