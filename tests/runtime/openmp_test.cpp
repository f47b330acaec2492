// An OpenMP library binds the main thread when it is loaded, if the environment has OMP_PROC_BIND, as it has on many
// clusters; oneTBB then finds one CPU and starts no workers. So none may be in the process before oneDNN is wanted,
// and then no thread may stay bound. Every test body runs in a process of its own (gtest's threadsafe death tests).
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <thread>
#include <vector>

#include "runtime/cpu/gemm/gemm.h"
#include "runtime/cpu/gemm/onednn.h"
#include "runtime/cpu/parallel.h"
#include "runtime/os/allowed_cpus.h"

namespace sherd::testing {
namespace {

constexpr const char* kVariables[] = {"OMP_PROC_BIND", "OMP_PLACES"};

class OpenMpDeathTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ::testing::GTEST_FLAG(death_test_style) = "threadsafe";
    if (allowed_cpus().count() < 2) GTEST_SKIP() << "one CPU";
    ::setenv("OMP_PROC_BIND", "true", 1);
    ::setenv("OMP_PLACES", "cores", 1);
  }
  void TearDown() override {
    for (const char* name : kVariables) ::unsetenv(name);
  }
};

[[noreturn]] void end(const char* fault) {
  if (fault) std::fprintf(stderr, "%s\n", fault);
  ::_exit(fault ? 1 : 0);
}

bool is_loaded(const char* library) {
  std::ifstream file("/proc/self/maps");
  const std::string maps{std::istreambuf_iterator<char>(file), {}};
  return maps.find(library) != std::string::npos;
}

// Whether two chunks run at the same time, each on a thread that may use all CPUs: each waits until both have begun.
bool two_threads_work(const std::vector<int>& cpus) {
  set_threads(2);
  std::atomic<int> begun = 0, bound = 0;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  parallel_for(2, 1, [&](std::int64_t, std::int64_t) {
    if (thread_cpus() != cpus) ++bound;
    ++begun;
    while (begun < 2 && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
    if (begun < 2) begun = -100;  // the other chunk comes too late, on this thread
  });
  return begun == 2 && bound == 0;
}

void multiply(cpu::GemmBackend backend) {
  constexpr std::int64_t kSize = 600;  // several pieces
  static const std::vector<float> a(kSize * kSize, 1.0f);
  static std::vector<float> c(kSize * kSize);
  const cpu::UseGemmBackend scope(backend);
  cpu::Gemm g;
  g.m = g.n = g.k = g.lda = g.ldb = g.ldc = kSize;
  cpu::gemm(g, a.data(), a.data(), c.data());
  if (c[0] != static_cast<float>(kSize)) end("a wrong product");
}

TEST_F(OpenMpDeathTest, AProgramWithoutOnednnLoadsNoneAndUsesItsThreads) {
  const auto body = [] {
    const std::vector<int> cpus = thread_cpus();
    if (cpus.size() < 2) end("the main thread is bound");
    multiply(cpu::GemmBackend::fastest);
    if (is_loaded("libgomp") || is_loaded("libdnnl")) end("an OpenMP library is loaded");
    if (!two_threads_work(cpus)) end("two chunks did not run on two threads that may use all CPUs");
    end(nullptr);
  };
  EXPECT_EXIT(body(), ::testing::ExitedWithCode(0), "");
}

TEST_F(OpenMpDeathTest, OnednnLeavesNoThreadBound) {
  const auto body = [] {
    const std::vector<int> cpus = thread_cpus();
    set_threads(2);
    multiply(cpu::GemmBackend::library);  // the first loop, too: oneTBB counts the CPUs now
    if (!is_loaded("libgomp")) end("oneDNN was not used");
    if (thread_cpus() != cpus) end("the main thread is bound");
    for (int i = 0; i < 20; ++i) multiply(cpu::GemmBackend::library);
    if (!two_threads_work(cpus)) end("two chunks did not run on two threads that may use all CPUs");
    end(nullptr);
  };
  if (!cpu::onednn_library().gemm) GTEST_SKIP() << "no oneDNN: " << cpu::onednn_library().reason;
  EXPECT_EXIT(body(), ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace sherd::testing
