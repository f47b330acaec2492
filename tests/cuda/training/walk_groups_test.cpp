// `sherd walk` and `sherd bench` by every group. Oracles: what ghosts predict, which runs on the CPU meet to the byte
// (tests/tools); errors name what a group cannot move.
#include <cstdlib>
#include <sstream>

#include <nlohmann/json.hpp>

#include "tests/tools/program_test.h"

namespace sherd::testing {
namespace {

using nlohmann::json;

class WalkGroups : public ProgramTest {
 protected:
  static ProgramEnd on_gpus(const Words& words) {
    const char* named = std::getenv("SHERD_CUDA_LIB");
    return sherd(words, {fmt::format("SHERD_CUDA_LIB={}", named ? named : SHERD_EMULATED_LIBRARY), "SHERD_CACHE="});
  }
  static ProgramEnd walk(const Words& more) {
    Words words{"walk",    "--json", "--measured", "1", "--rounds",   "1",  "--ranks", "2",    "--layers", "2",
                "--width", "32",     "--heads",    "2", "--sequence", "16", "--link",  "none", "--only",   "no_shard"};
    words.insert(words.end(), more.begin(), more.end());
    return on_gpus(words);
  }
  static std::vector<json> lines_of(const ProgramEnd& end) {
    EXPECT_EQ(end.status, 0) << end.err << end.out;
    std::vector<json> lines;
    std::istringstream text(end.out);
    for (std::string line; std::getline(text, line);) lines.push_back(json::parse(line));
    return lines;
  }
};

TEST_F(WalkGroups, RowsMoveWhatGhostsPredictByEveryGroup) {
  for (const Words& group : {Words{"--group", "thread"}, Words{"--device", "cuda", "--group", "nccl"},
                             Words{"--device", "cuda", "--group", "staged"}}) {
    SCOPED_TRACE(fmt::format("{}", fmt::join(group, " ")));
    const std::vector<json> lines = lines_of(walk(group));
    ASSERT_EQ(lines.size(), 3u);
    const bool are_threads = group.back() == "thread";
    expect_within(lines[0].at("ranks").get<std::string>(), {are_threads ? "2 threads" : "2 processes"});
    if (!are_threads) expect_within(lines[0].at("ranks").get<std::string>(), {"cuda:0", "group " + group.back()});
    for (std::size_t i = 1; i < lines.size(); ++i) {
      EXPECT_FALSE(lines[i].contains("failure")) << lines[i];
      EXPECT_GT(lines[i].at("step_seconds"), 0);
      for (const char* key : {"calls", "bytes"})
        EXPECT_EQ(lines[i].at(key), lines[i].at(std::string("predicted_") + key));
      for (const char* key : {"parameters", "unsharded", "gradients", "optimizer"})
        EXPECT_EQ(lines[i].at("memory_bytes").at(key), lines[i].at("predicted_memory_bytes").at(key)) << key;
    }
  }
}

TEST_F(WalkGroups, WhatAGroupCannotMoveIsNamed) {
  for (const char* group : {"nccl", "staged"}) {
    const ProgramEnd end = walk({"--group", group});
    EXPECT_EQ(end.status, kUsage);
    expect_within(end.err, {fmt::format("group = {} moves memory of GPUs", group), "--device cuda"});
  }
  const ProgramEnd end = walk({"--device", "cuda", "--group", "shm"});
  EXPECT_EQ(end.status, kUsage);
  expect_within(end.err, {"group = shm moves memory of the host", "cuda:0", "nccl or staged"});
}

TEST_F(WalkGroups, FiguresOfSeveralRanksTakeTheirGroup) {
  const auto figure = [](const std::string& name, const std::string& group) {
    const auto end = on_gpus({"bench", name, "--smoke", "--python", "none", "--json", "--group", group});
    return json::parse(end.out.substr(0, end.out.find('\n')));
  };
  for (const char* name : {"fsdp.bigger.r2", "units.r2", "shm.all_gather"})
    EXPECT_GT(figure(name, "thread").at("value"), 0) << name;
  expect_within(figure("fsdp.bigger.r2", "nccl").at("note").get<std::string>(),
                {"group = nccl moves memory of GPUs, and the ranks compute on cpu"});
  const ProgramEnd step =
      on_gpus({"run", "-n", "2", "--", "/bin/sh", "-c",
               "echo 2 | exec $0 bench --child step --model tiny --device cuda --group nccl", SHERD_PROGRAM});
  EXPECT_EQ(step.status, 0) << step.err;
  const std::size_t begin = step.out.find('{', step.out.find('\n'));  // the first line greets; each has its rank first
  ASSERT_NE(begin, std::string::npos) << step.out;
  const json answer = json::parse(step.out.substr(begin, step.out.find('\n', begin) - begin));
  EXPECT_GT(answer.at("comm_bytes"), 0);
  EXPECT_GE(answer.at("exposed_seconds")[0], 0);
}

}  // namespace
}  // namespace sherd::testing
