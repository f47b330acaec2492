// `sherd bench` as a user sees it, in tiny sizes, with shell scripts in the place of a Python that has torch.
#include <filesystem>
#include <map>
#include <sstream>
#include <utility>

#include <nlohmann/json.hpp>

#include "tests/tools/program_test.h"

namespace sherd {

using namespace train;

namespace {

using testing::expect_within;

class Bench : public testing::ProgramTest {
 protected:
  static std::vector<nlohmann::json> figures(const testing::ProgramEnd& end) {
    std::vector<nlohmann::json> result;
    std::istringstream lines(end.out);
    for (std::string line; std::getline(lines, line);) result.push_back(nlohmann::json::parse(line));
    return result;
  }
  /// A "python" that runs `on_settings` when asked for its torch, and `on_peer` as any other program.
  std::string python(const std::string& name, const std::string& on_settings, const std::string& on_peer) const {
    const std::string path =
        dir_.write(name, "#!/bin/sh\ncase $1 in */settings.py) " + on_settings + ";; *) " + on_peer + ";; esac\n");
    std::filesystem::permissions(path, std::filesystem::perms::owner_all);
    return path;
  }
  static std::string settings(const std::string& name) {
    return "echo '{\"peer\": \"" + name + "\", \"environment\": {\"PEER_VARIABLE\": \"7\"}, \"settings\": \"best\"}'";
  }
  static std::string answering(const std::string& name, const std::string& seconds) {
    return "echo '{\"peer\": \"" + name + "\"}'; while read r; do echo '{\"seconds\": [" + seconds + "]}'; done";
  }
};

TEST_F(Bench, OneObjectPerFigureWithTheContractsFields) {
  const auto end = sherd({"bench", "dispatch", "--smoke", "--python", "none", "--json"});
  EXPECT_EQ(end.status, 0) << end.err;
  const auto all = figures(end);
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0].at("name"), "dispatch.plain");
  EXPECT_EQ(all[1].at("name"), "dispatch.recording");
  for (const nlohmann::json& figure : all) {
    EXPECT_GT(figure.at("value"), 0);
    EXPECT_EQ(figure.at("unit"), "ns");
    for (const auto* none : {"peer", "peer_value", "ratio", "limit", "target", "pass"})
      EXPECT_TRUE(figure.at(none).is_null()) << none;
  }
}

TEST_F(Bench, EveryFigureRunsInTinySizes) {
  for (const auto* family : {"step", "flops", "rss", "gemm", "dispatch", "dtensor", "shm", "fsdp", "ddp", "tp",
                             "memory", "overlap", "hsdp", "units", "ghost", "save", "binding", "program"}) {
    const auto end = sherd({"bench", family, "--smoke", "--python", "none", "--json"});
    EXPECT_FALSE(figures(end).empty());
    for (const nlohmann::json& figure : figures(end)) EXPECT_FALSE(figure.at("value").is_null()) << figure;
    EXPECT_EQ(end.status, 0) << family;
  }
}

TEST_F(Bench, FiguresOfSeveralPrefixesComeInTheirOrderOnce) {
  const auto all = figures(sherd({"bench", "dispatch.recording", "dispatch", "--smoke", "--python", "none", "--json"}));
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0].at("name"), "dispatch.recording");
  EXPECT_EQ(all[1].at("name"), "dispatch.plain");
}

TEST_F(Bench, UnknownPrefixNamesTheNearest) {
  const auto end = sherd({"bench", "dispatch.plane"});
  EXPECT_EQ(end.status, kUsage);
  expect_within(end.err, {"\"dispatch.plane\"", "did you mean dispatch.plain?"});
}

TEST_F(Bench, PeersAreNamedWithTheirSettingsTheFirstOneCounts) {
  const std::string first = python("first", settings("fake 1"), answering("fake 1", "10, 30, 20"));
  const std::string second = python("second", settings("fake 2"), answering("fake 2", "5"));
  const auto end = sherd({"bench", "dispatch.plain", "--smoke", "--python", first, "--peer-python", second, "--json"});
  const auto all = figures(end);
  ASSERT_EQ(all.size(), 1u) << end.err;
  EXPECT_EQ(all[0].at("peer"), "fake 1");
  EXPECT_EQ(all[0].at("peer_value"), 20e9);  // ns
  EXPECT_DOUBLE_EQ(all[0].at("ratio"), 20e9 / all[0].at("value").get<double>());
  ASSERT_EQ(all[0].at("peers").size(), 2u);
  EXPECT_EQ(all[0].at("peers")[1].at("peer"), "fake 2");
  EXPECT_EQ(all[0].at("peers")[1].at("peer_value"), 5e9);
  EXPECT_EQ(all[0].at("peers")[1].at("settings"), "best");
}

TEST_F(Bench, PeersRunInTheSettingsFoundForThem) {
  const std::string peer = python("peer", settings("fake"),
                                  "[ \"$PEER_VARIABLE$OPENBLAS_CORETYPE\" = 7 ] || exit 9; " + answering("fake", "1"));
  const auto end =
      sherd({"bench", "dispatch.plain", "--smoke", "--python", peer, "--json"}, {"OPENBLAS_CORETYPE=Haswell"});
  EXPECT_EQ(figures(end).at(0).at("peer"), "fake") << end.out;
}

TEST_F(Bench, AMissingPeerIsNoted) {  // and a target that needs it fails: BenchFigure
  const auto end = sherd({"bench", "dispatch.plain", "--smoke", "--python", "/no/such/python", "--json"});
  const nlohmann::json figure = figures(end).at(0);
  EXPECT_GT(figure.at("value"), 0);
  EXPECT_TRUE(figure.at("peer").is_null() && figure.at("ratio").is_null());
  expect_within(figure.at("note"), {"no peer", "/no/such/python"});
}

TEST_F(Bench, ABadPeerIsNamedAndTheFigureStands) {
  struct Case {
    std::string on_settings, on_peer, note;
  };
  const std::vector<Case> cases = {
      {"echo \"No module named 'torch'\" >&2; exit 1", "", "No module named 'torch'"},
      {"echo hello", "", "\"hello\" instead of a JSON object"},
      {"echo '{\"peer\": 3}'", "", "peer"},
      {settings("fake"), "echo '{\"peer\": \"fake\"}'; read r; exit 4", "failed with status 4"},
      {settings("fake"), answering("fake", "-1"), "-1 where seconds were expected"},
  };
  for (const Case& c : cases) {
    const std::string peer = python("peer", c.on_settings, c.on_peer);
    const auto end = sherd({"bench", "dispatch.plain", "--smoke", "--python", peer, "--json"});
    const nlohmann::json figure = figures(end).at(0);
    EXPECT_GT(figure.at("value"), 0);
    EXPECT_TRUE(figure.at("peer").is_null());
    expect_within(figure.at("note"), {"no peer: ", c.note});
  }
}

TEST_F(Bench, OfAPeersVariantsTheFastestCounts) {
  const std::string peer =
      python("peer", settings("fake"),
             "case \"$*\" in *autocast*compile) exit 3;; *compile) s=2;; *autocast*) s=4;; *) s=3;; esac; "
             "echo '{\"peer\": \"fake\"}'; while read r; do echo \"{\\\"seconds\\\": [$s]}\"; done");
  const auto end = sherd({"bench", "step.mini.bf16.t1", "--smoke", "--python", peer, "--json"});
  const auto all = figures(end);
  ASSERT_EQ(all.size(), 2u) << end.err;
  ASSERT_EQ(all[0].at("peers").size(), 1u);
  EXPECT_EQ(all[0].at("peer_value"), 2'000);  // ms
  expect_within(all[0].at("peers")[0].at("settings"),
                {"torch.compile bf16, best", "eager bf16 takes 1.50 times as long", "eager autocast takes 2.00 times",
                 "torch.compile autocast failed", "status 3"});
  EXPECT_EQ(all[1].at("name"), "step.mini.bf16.t1.eager");
  EXPECT_EQ(all[1].at("peer_value"), 3'000) << "what is not captured is compared with what is not compiled";
}

TEST_F(Bench, AnotherBuildIsTheOnlyPeerAndNoTargetHolds) {
  const auto end = sherd({"bench", "dispatch.plain", "step.mini.f32.t1", "rss", "memory.bigger.r2", "overlap",
                          "units.r2", "--smoke", "--against", SHERD_PROGRAM, "--json"});
  EXPECT_EQ(end.status, 0) << end.out;
  EXPECT_EQ(figures(end).size(), 11u);
  for (const nlohmann::json& figure : figures(end)) {
    ASSERT_EQ(figure.value("peers", nlohmann::json::array()).size(), 1u) << figure;
    EXPECT_EQ(figure.at("peer"), std::filesystem::canonical(SHERD_PROGRAM).string());
    const bool is_difference = figure.at("name") == "units.r2.overhead";  // in tiny sizes of any sign
    EXPECT_TRUE(is_difference || figure.at("ratio") > 0) << figure;
    EXPECT_TRUE(figure.at("target").is_null() && !figure.contains("note")) << figure;
  }
}

TEST_F(Bench, F16IsComparedWithBf16) {
  const auto end = sherd({"bench", "loss.mini.f16", "--smoke", "--python", "none", "--json"});
  EXPECT_EQ(end.status, 0) << end.err;
  const auto all = figures(end);
  ASSERT_EQ(all.size(), 1u);
  EXPECT_LT(all[0].at("value"), 0.02) << "after four steps little can differ";
}

TEST_F(Bench, ABuildTrainsLikeItself) {  // the same bits, through the figure that compares losses
  const auto end = sherd({"bench", "loss.mini.f32", "--smoke", "--against", SHERD_PROGRAM, "--json"});
  EXPECT_EQ(figures(end).at(0).at("value"), 0) << end.out;
}

TEST_F(Bench, AnotherBuildIsAskedInTheSameWords) {
  const std::string other =
      dir_.write("sherd", "#!/bin/sh\necho \"$@\" >> " + dir_ / "words" + "; " + answering("sherd", "1") + "\n");
  std::filesystem::permissions(other, std::filesystem::perms::owner_all);
  const auto end = sherd({"bench", "step.mini.f32.t1.eager", "units.r2", "--smoke", "--against", other, "--json"});
  EXPECT_EQ(figures(end).at(0).at("peer_value"), 1'000);
  EXPECT_EQ(dir_.read("words"),
            "bench --child step --model tiny --dtype f32 --threads 1 --captured false\nrun -n 2 -- " + other +
                " bench --child units --sharded true\nbench --child units --sharded false\n");
}

TEST_F(Bench, OverheadOfUnitsIsADifferenceOfEachSidesFigures) {
  const std::string peer =
      python("peer", settings("fake"),
             "case \"$*\" in *\" plain 1\") s=0.064;; *\" fsdp2 1\") s=0.096;; *) s=0.128;; esac; "
             "echo '{\"peer\": \"fake\"}'; while read r; do echo \"{\\\"seconds\\\": [$s]}\"; done");
  const auto end = sherd({"bench", "units.plain", "units.r1", "units.r2", "--smoke", "--python", peer, "--json"});
  EXPECT_EQ(end.status, 0) << end.err;
  std::map<std::string, nlohmann::json> by_name;
  for (const nlohmann::json& figure : figures(end)) by_name[figure.at("name")] = figure;
  const double plain = by_name.at("units.plain").at("value");
  for (const auto& [name, of_peer] : {std::pair("units.r1", 1000.0), std::pair("units.r2", 2000.0)}) {
    const nlohmann::json& overhead = by_name.at(std::string(name) + ".overhead");
    EXPECT_NEAR(overhead.at("value").get<double>(), (by_name.at(name).at("value").get<double>() - plain) * 1e3 / 32,
                1e-6);
    EXPECT_NEAR(overhead.at("peer_value").get<double>(), of_peer, 1e-6);
  }
}

TEST_F(Bench, NodesOfACapturedStepAddUpToTheFormula) {
  const auto end = sherd({"bench", "program.flops", "--smoke", "--python", "none", "--json"});
  const nlohmann::json figure = figures(end).at(0);
  EXPECT_GT(figure.at("value"), 0.9) << "a row of products does not count them";
  EXPECT_LT(figure.at("value"), 1.2);
  const nlohmann::json& detail = figure.at("detail");
  EXPECT_DOUBLE_EQ(figure.at("value"), detail.at("flops").get<double>() / detail.at("formula_flops").get<double>());
}

TEST_F(Bench, ABuildThatAnswersOtherwiseIsNoted) {
  struct Case {
    std::string script, note;
  };
  for (const Case& c : {Case{"echo 'sherd: there is no flag --model' >&2; exit 1", "there is no flag --model"},
                        Case{answering("sherd", "1"), "answered without /growth_bytes"}}) {
    const std::string other = dir_.write("sherd", "#!/bin/sh\n" + c.script + "\n");
    std::filesystem::permissions(other, std::filesystem::perms::owner_all);
    const auto end = sherd({"bench", "rss", "--smoke", "--against", other, "--json"});
    const nlohmann::json figure = figures(end).at(0);
    EXPECT_GT(figure.at("value"), 0);
    EXPECT_TRUE(figure.at("peer").is_null());
    expect_within(figure.at("note"), {"no peer: ", c.note});
  }
  expect_within(sherd({"bench", "rss", "--against", dir_ / "nothing"}).err,
                {"--against", dir_ / "nothing", "there is no program"});
  expect_within(sherd({"bench", "rss", "--against", SHERD_PROGRAM, "--python", "none"}).err, {"only peer", "--python"});
}

TEST_F(Bench, WithoutAnEnvironmentTheRemedyIsNamed) {
  const auto end = sherd({"bench", "dispatch.plain", "--smoke", "--json"}, {"SHERD_VENV=" + (dir_ / "none")});
  expect_within(figures(end).at(0).at("note"), {"no peer: ", dir_ / "none", "tools/setup --python"});
}

TEST_F(Bench, HelpListsEveryFigureWithItsTarget) {
  const auto end = sherd({"bench", "--help"});
  EXPECT_EQ(end.status, 0);
  expect_within(end.out, {"step.mini.f32.t1", "ratio >= 1.4", "--peer-python"});
  expect_within(end.out, {"units.r1.overhead ", ": value <= 1\n", "units.r2.overhead ", ": value <= 25\n"});
}

TEST_F(Bench, WrongWordsAreErrors) {
  expect_within(sherd({"bench", "dispatch", "dispatch.recordimg"}).err,
                {"\"dispatch.recordimg\"", "did you mean dispatch.recording?"});
  expect_within(sherd({"bench", "--jsn"}).err, {"--jsn", "--json"});
  expect_within(sherd({"bench", "--child", "nothing"}).err, {"nothing", "none of that name"});
}

}  // namespace
}  // namespace sherd
