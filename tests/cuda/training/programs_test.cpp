// `sherd train`, eval, sample and info with a GPU, as a user runs them: the library is the emulated GPU's, or the one
// that SHERD_CUDA_LIB names.
#include <cstdlib>
#include <regex>
#include <sstream>

#include <nlohmann/json.hpp>

#include "nn/checkpoint/format/safetensors.h"
#include "tests/support/file_size_limit.h"
#include "tests/tools/program_test.h"

namespace sherd::testing {
namespace {

using nlohmann::json;

class CudaProgram : public ProgramTest {
 protected:
  static ProgramEnd on_gpu(const Words& words, Words environment = {}) {
    const char* named = std::getenv("SHERD_CUDA_LIB");
    environment.push_back(fmt::format("SHERD_CUDA_LIB={}", named ? named : SHERD_EMULATED_LIBRARY));
    environment.push_back("SHERD_CACHE=");  // nothing of the emulated GPU is kept in the user's cache
    return sherd(words, environment);
  }
  ProgramEnd train_on_gpu(Words words, const Words& environment = {}) const {
    words.insert(words.begin(), {"train", config_file_, "--device", "cuda"});
    return on_gpu(words, environment);
  }
  /// Each rank of `sherd run` runs the script in the test's folder; $0 is the program, $1 the config.
  ProgramEnd ranks_on_gpu(int ranks, const std::string& script) const {
    return on_gpu({"run", "-n", std::to_string(ranks), "--", "/bin/sh", "-c",
                   fmt::format("cd {}; {}", dir_.path(), script), SHERD_PROGRAM, config_file_});
  }
  std::vector<json> lines_of(const std::string& file) const {
    std::vector<json> lines;
    std::istringstream text(dir_.read(file));
    for (std::string line; std::getline(text, line);) lines.push_back(json::parse(line));
    return lines;
  }
  /// Expects that a program failed as it should.
  static void expect_failed(const ProgramEnd& end, std::initializer_list<std::string_view> parts, int status = 1) {
    EXPECT_FALSE(end.timed_out);
    EXPECT_EQ(end.status, status) << end.err;
    expect_within(end.err, parts);
  }
  /// A run that asks for what the host does not have is not started again.
  static void expect_refused(const ProgramEnd& end, std::initializer_list<std::string_view> parts) {
    expect_failed(end, parts, 2);
  }
  std::string write_tokens() const {
    std::vector<std::int64_t> tokens;
    for (int i = 0; i < 2 * 12; ++i) tokens.push_back(i * 7 % 29);
    const ckpt::TensorBytes tensor{{"tokens", DType::i64, {2, 12}}, std::as_bytes(std::span(tokens))};
    ckpt::write_safetensors(dir_ / "tokens.safetensors", std::span(&tensor, 1));
    return dir_ / "tokens.safetensors";
  }
  static double loss_of(const ProgramEnd& end) {
    EXPECT_EQ(end.status, 0) << end.err;
    std::smatch match;
    return std::regex_search(end.out, match, std::regex("loss ([0-9.]+)")) ? std::stod(match[1]) : 0;
  }
};

TEST_F(CudaProgram, TrainsAndReports) {
  const ProgramEnd cpu = train(1, {"--steps", "3", "--metrics", dir_ / "cpu.jsonl"});
  ASSERT_EQ(cpu.status, 0) << cpu.err;
  const ProgramEnd end = train_on_gpu({"--steps", "3", "--metrics", dir_ / "gpu.jsonl", "--trace", dir_ / "trace.json",
                                       "--trace-steps", "2:3", "--save", dir_ / "checkpoint"});
  ASSERT_EQ(end.status, 0) << end.err;
  const std::vector<json> expected = lines_of("cpu.jsonl"), lines = lines_of("gpu.jsonl");
  ASSERT_EQ(lines.size(), expected.size());
  EXPECT_EQ(lines[0]["config"]["device"], "cuda:0");
  for (std::size_t i = 1; i < lines.size(); ++i) {
    EXPECT_EQ(lines[i]["step"], i);
    EXPECT_NEAR(lines[i]["loss"].get<double>(), expected[i]["loss"].get<double>(), 1e-4);
    EXPECT_GT(lines[i]["memory_bytes"]["parameters"].get<double>(), 0);
    EXPECT_GT(lines[i]["memory_bytes"]["activations"].get<double>(), 0);
  }
  const json trace = json::parse(dir_.read("trace.json"));
  const auto has = [&](std::string_view name) {
    for (const json& event : trace["traceEvents"])
      if (event.value("name", "") == name) return true;
    return false;
  };
  for (const char* name : {"step 2", "batch", "adamw", "layer_norm"}) EXPECT_TRUE(has(name)) << name;

  // What was trained there is evaluated and continued anywhere.
  const std::string tokens = write_tokens(), weights = dir_ / "checkpoint";
  const double here = loss_of(sherd({"eval", weights, "--tokens", tokens}));
  const double there = loss_of(
      on_gpu({"eval", weights, "--tokens", tokens, "--device", "cuda:0", "--logits", dir_ / "logits.safetensors"}));
  EXPECT_NEAR(there, here, 1e-5);
  EXPECT_EQ(ckpt::SafetensorsFile::open(dir_ / "logits.safetensors").at("logits").shape, (Shape{2, 12, 29}));
  const Words words{"sample", weights, "--prompt", "the", "--tokens", "4", "--temperature", "0"};
  Words there_too = words;
  there_too.insert(there_too.end(), {"--device", "cuda"});
  EXPECT_EQ(on_gpu(there_too).out, sherd(words).out);
}

TEST_F(CudaProgram, InfoListsWhatIsThere) {
  const ProgramEnd end = on_gpu({"info"});
  EXPECT_EQ(end.status, 0) << end.err;
  expect_within(end.out, {"devices          cpu, meta, cuda", "cuda             /", "CUDA runtime", "driver", "cuda:0",
                          "kernels        for compute capability 9.0, from PTX of 9.0", "compute capability"});
  expect_within(on_gpu({"info"}, {"SHERD_EMULATED_GPU_STATE=no_driver"}).out,
                {"devices          cpu, meta\n", "no NVIDIA driver on this host"});
}

// Versions whose gradients are known to be wrong for some shapes are left alone, and a user is told.
TEST_F(CudaProgram, ACudnnWithWrongGradientsIsRefused) {
  if (on_gpu({"info"}).out.find("built without cuDNN") != std::string::npos) GTEST_SKIP() << "no cuDNN in this build";
  const std::string by_cudnn = "cuDNN's (bf16, f16; K <= 128";
  const auto info_of = [](const std::string& version) {
    return on_gpu({"info"}, {"SHERD_EMULATED_CUDNN_VERSION=" + version}).out;
  };
  for (const auto& [version, text] : std::map<std::string, std::string>{{"90600", "9.6.0"},
                                                                        {"91000", "9.10.0"},
                                                                        {"91001", "9.10.1"},
                                                                        {"91002", "9.10.2"},
                                                                        {"91500", "9.15.0"},
                                                                        {"91501", "9.15.1"}}) {
    const std::string info = info_of(version);
    expect_within(info, {"none: ", "libcudnn.so.9 is version " + text, "needs 9.16.0 or newer",
                         "gradients of older ones have known faults", "attention      own kernels"});
    EXPECT_EQ(info.find(by_cudnn), std::string::npos) << info;
  }
  for (const char* version : {"91600", "92300"}) expect_within(info_of(version), {by_cudnn});

  const Words run{"--steps", "1", "--param-dtype", "bf16"};
  const ProgramEnd old = train_on_gpu(run, {"SHERD_EMULATED_CUDNN_VERSION=91002"});
  EXPECT_EQ(old.status, 0) << old.err;
  const std::string said = "attention by own kernels: ";
  expect_within(old.err, {said, "version 9.10.2"});
  EXPECT_EQ(old.err.find(said), old.err.rfind(said)) << "once: " << old.err;
  EXPECT_EQ(loss_of(old), loss_of(train_on_gpu(run, {"SHERD_ATTENTION=own"})));
}

TEST_F(CudaProgram, WhatAHostLacksIsNamed) {
  expect_refused(train_on_gpu({}, {"SHERD_EMULATED_GPU_STATE=no_driver"}), {"cuda:0", "no NVIDIA driver"});
  expect_refused(train_on_gpu({}, {"SHERD_EMULATED_GPU_DRIVER=12020"}),
                 {"cuda:0", "is for CUDA 12.2", "needs", "update the driver"});
  expect_refused(train_on_gpu({}, {"SHERD_EMULATED_GPU_STATE=none"}), {"cuda:0", "no CUDA-capable device"});
  expect_refused(train_on_gpu({}, {"SHERD_EMULATED_GPU_CAPABILITY=70"}),
                 {"compute capability 7.0", "no code", "SHERD_CUDA_ARCHITECTURES=70-real", "8.0, Ampere"});
  expect_refused(train_on_gpu({"--device", "cuda:3"}, {"SHERD_EMULATED_GPU_DEVICES=1"}),
                 {"cuda:3", "this host has 1 CUDA device"});
  expect_refused(
      sherd({"train", config_file_, "--device", "cuda"}, {std::string("SHERD_CUDA_LIB=") + SHERD_CORE_LIBRARY}),
      {"exports no sherd_backend"});
}

TEST_F(CudaProgram, ALackOfMemoryNamesTheOwners) {
  expect_failed(train_on_gpu({"--model.width", "256"}, {"SHERD_EMULATED_GPU_CAPACITY=8388608"}),
                {"out of memory on cuda:0", "are free", "owners", "parameters"});
  expect_failed(train_on_gpu({"--memory-limit", "100000"}), {"out of memory", "limit of 100 KB", "owners"});
}

// A kernel that fails is noticed later; the error names it and no other.
TEST_F(CudaProgram, ALostDeviceNamesWhatWasUnderWay) {
  const ProgramEnd end = train_on_gpu({}, {"SHERD_EMULATED_GPU_ILLEGAL_ADDRESS=loss_rows_kernel"});
  expect_failed(end, {"cuda:0 is lost to this process: cudaErrorIllegalAddress", "queued EARLIER", "loss_rows_kernel",
                      "CUDA_LAUNCH_BLOCKING=1"});
  EXPECT_EQ(end.err.find("launch of"), std::string::npos) << end.err;
  const ProgramEnd blocking =
      train_on_gpu({}, {"SHERD_EMULATED_GPU_ILLEGAL_ADDRESS=loss_rows_kernel", "CUDA_LAUNCH_BLOCKING=1"});
  expect_failed(blocking, {"cuda:0 is lost", "loss_rows_kernel", "noticed launch of loss_rows_kernel"});
}

TEST_F(CudaProgram, RanksTrainEachOnItsDevice) {
  const ProgramEnd cpu = train(2, {"--steps", "3", "--metrics", dir_ / "cpu.jsonl"});
  ASSERT_EQ(cpu.status, 0) << cpu.err;
  const ProgramEnd end =
      ranks_on_gpu(2, "exec $0 train $1 --device cuda --reproducible --steps 3 --metrics gpu.jsonl --save saves");
  ASSERT_EQ(end.status, 0) << end.err;
  expect_within(end.err, {"2 ranks, memory of GPUs by NCCL 2.", ", sums ordered, "});
  const std::vector<json> expected = lines_of("cpu.jsonl"), lines = lines_of("gpu.jsonl");
  ASSERT_EQ(lines.size(), expected.size());
  for (std::size_t i = 1; i < lines.size(); ++i)
    EXPECT_NEAR(lines[i]["loss"].get<double>(), expected[i]["loss"].get<double>(), 1e-5 * 4);

  // One device to each, as Slurm shows them; the same bits, and on one device for both.
  for (const char* how :
       {"CUDA_VISIBLE_DEVICES=$SHERD_RANK exec $0 train $1 --device cuda",
        "exec $0 train $1 --device cuda --group staged --sums ordered", "exec $0 train $1 --device cuda --group thread",
        "CUDA_VISIBLE_DEVICES=0 exec $0 train $1 --device cuda --group staged"}) {
    const ProgramEnd again = ranks_on_gpu(2, std::string(how) + " --reproducible --steps 3 --metrics again.jsonl");
    ASSERT_EQ(again.status, 0) << again.err;
    const std::vector<json> repeated = lines_of("again.jsonl");
    for (std::size_t i = 1; i < lines.size(); ++i) EXPECT_EQ(repeated[i]["loss"], lines[i]["loss"]) << how;
  }

  const std::string tokens = write_tokens();
  const double here = loss_of(sherd({"eval", dir_ / "saves", "--tokens", tokens}));
  const ProgramEnd there = ranks_on_gpu(2, "exec $0 eval saves --tokens tokens.safetensors --device cuda");
  EXPECT_NEAR(loss_of(there), here, 1e-5);
}

TEST_F(CudaProgram, RanksWhoseDevicesDoNotFitAreRefusedOnEach) {
  const std::string train = " exec $0 train $1 --device cuda";
  expect_refused(ranks_on_gpu(2, "CUDA_VISIBLE_DEVICES=3" + train),
                 {"ranks 0 and 1 compute on one device", "GPU-", "--group staged"});
  expect_refused(ranks_on_gpu(2, "SHERD_NCCL_LIB=/nowhere/libnccl.so" + train + " --group nccl"),
                 {"group = nccl", "rank 0 has none", "/nowhere/libnccl.so"});
  const ProgramEnd staged =
      ranks_on_gpu(2, "[ $SHERD_RANK = 1 ] && export SHERD_NCCL_LIB=/nowhere/libnccl.so;" + train);
  EXPECT_EQ(staged.status, 0) << staged.err;
  expect_within(staged.err, {"memory of GPUs through the host (staged: rank 1 has none: ", "/nowhere/libnccl.so"});
  expect_refused(ranks_on_gpu(2, "SHERD_REPRODUCIBLE=1" + train + " --sums fast"), {"sums = fast", "ordered"});
  expect_refused(ranks_on_gpu(2, "exec $0 train $1 --reproducible --sums fast"), {"sums = fast", "ordered"});
  expect_refused(ranks_on_gpu(2, "SHERD_EMULATED_GPU_CAPABILITY=$((80 + 10 * SHERD_RANK))" + train),
                 {"unlike devices", "the GPU is emulated GPU, compute capability 8.0", "on rank 0",
                  "compute capability 9.0", "on rank 1", "CUDA_VISIBLE_DEVICES"});
  expect_refused(ranks_on_gpu(2, "[ $SHERD_RANK = 1 ] && export SHERD_EMULATED_GPU_PTX=80;" + train),
                 {"unlike devices", "the code of kernels is for compute capability 9.0, from PTX of 9.0 on rank 0",
                  "from PTX of 8.0 on rank 1"});
  expect_refused(ranks_on_gpu(2, "[ $SHERD_RANK = 1 ] && export CUDA_VISIBLE_DEVICES=;" + train),
                 {"rank 1", "no CUDA-capable device"});
  expect_refused(ranks_on_gpu(2, "SHERD_EMULATED_GPU_DEVICES=2" + train + ":2"), {"cuda:2", "2 CUDA devices"});
}

TEST_F(CudaProgram, AFullDiskEndsTheRunWithItsName) {
  const FileSizeLimit limit(2000);
  expect_failed(train_on_gpu({"--metrics", dir_ / "gpu.jsonl"}), {"gpu.jsonl", "File too large"});
}

}  // namespace
}  // namespace sherd::testing
