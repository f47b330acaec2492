// The parts of `sherd bench`: how figures are judged, how sides are talked to. Sides are small shell scripts.
#include <gtest/gtest.h>

#include "tests/support/expect_error.h"
#include "tests/support/temp_dir.h"
#include "tools/bench/contest.h"
#include "tools/bench/fma_peak.h"
#include "tools/bench/models.h"

namespace sherd::bench {
namespace {

using testing::expect_error;
using testing::TempDir;

SideCommand shell(const std::string& script) { return {{"/bin/sh", "-c", script}, {}}; }
/// Answers every request by the same line.
SideCommand echoing(const std::string& answer) {
  return shell("echo '{\"peer\": \"shell\"}'; while read request; do echo '" + answer + "'; done");
}

TEST(BenchFigure, RatioIsTimesBetter) {
  Figure time{.name = "t", .unit = {"ms", Better::lower}, .value = 10.0, .peers = {{"p", 15}}};
  EXPECT_DOUBLE_EQ(*ratio(time), 1.5);
  Figure rate{.name = "r", .unit = {"GF/s", Better::higher}, .value = 30.0, .peers = {{"p", 20}}};
  EXPECT_DOUBLE_EQ(*ratio(rate), 1.5);
  rate.peers.clear();
  EXPECT_FALSE(ratio(rate).has_value());
}

TEST(BenchFigure, RulesJudge) {
  struct Case {
    Target target;
    bool passes;
  };
  for (const Case& c :
       {Case{{Rule::value_at_most, 10}, true}, Case{{Rule::value_at_most, 9.9}, false},
        Case{{Rule::value_at_least, 10}, true}, Case{{Rule::value_at_least, 10.1}, false},
        Case{{Rule::ratio_at_least, 1.5}, true}, Case{{Rule::ratio_at_least, 1.6}, false},
        Case{{Rule::limit_factor_at_most, 1.25}, true}, Case{{Rule::limit_factor_at_most, 1.2}, false}}) {
    const Figure figure{.name = "f", .target = c.target, .value = 10.0, .peers = {{"p", 15}}, .limit = 8.0};
    EXPECT_EQ(passes(figure), std::optional(c.passes)) << describe(c.target);
  }
}

TEST(BenchFigure, WithoutATargetNothingIsJudgedWithoutAValueItFails) {
  EXPECT_EQ(passes(Figure{.name = "f", .value = 1.0}), std::nullopt);
  EXPECT_EQ(passes(Figure{.name = "f"}), std::optional(false));
  // A target that needs what was not measured is not reached.
  EXPECT_EQ(passes(Figure{.name = "f", .target = {Rule::ratio_at_least, 1}, .value = 1.0}), std::optional(false));
  EXPECT_EQ(passes(Figure{.name = "f", .target = {Rule::limit_factor_at_most, 1}, .value = 1.0}), std::optional(false));
}

TEST(BenchFigure, JsonStaysJsonWhateverAPeerPrints) {
  Figure figure{.name = "f", .note = "bad \xff byte and \"quotes\""};
  EXPECT_TRUE(nlohmann::json::accept(to_json(figure)));
}

TEST(BenchSide, AnswersOnePerRequest) {
  Side side(shell("echo '{\"peer\": \"x\"}'; while read a b; do echo \"{\\\"sum\\\": $((a + b))}\"; done"));
  EXPECT_EQ(side.greeting().at("peer"), "x");
  EXPECT_EQ(side.ask("1 2").at("sum"), 3);
  EXPECT_EQ(side.ask("20 3").at("sum"), 23);
}

TEST(BenchSide, FailuresAreNamed) {
  expect_error([] { Side side({{"/no/such/python", "a.py"}, {}}); }, {"'/no/such/python' not found"});
  expect_error([] { Side side(shell("echo hello")); }, {"/bin/sh -c", "\"hello\"", "JSON object"});
  expect_error([] { Side side(shell("echo 17")); }, {"\"17\"", "JSON object"});
  expect_error([] { Side side(shell("echo lost >&2; echo no torch >&2; exit 3")); },
               {"failed with status 3", "its last line on stderr: no torch"});
  expect_error([] { Side side(shell("echo lost >&2; echo 'no kernel' >&2; echo '  op add' >&2; exit 1")); },
               {"its last line on stderr: no kernel"});
  expect_error([] { Side side(shell("kill -SEGV $$")); }, {"was killed by signal 11"});
  expect_error([] { Side side(shell("exit 0")); }, {"ended without an answer"});
  expect_error([] { Side side(shell("exec sleep 1000"), std::chrono::milliseconds(50)); },
               {"did not answer within 0.05 s"});
  expect_error([] { Side(echoing("{\"error\": \"too big\"}")).ask("1"); }, {"too big"});
}

TEST(BenchSide, MuchOnStderrDoesNotBlock) {
  Side side(shell("seq 1 100000 >&2; echo '{\"peer\": \"x\"}'; exit 1"));
  EXPECT_EQ(side.greeting().at("peer"), "x");
}

TEST(BenchContest, SidesTakeTurns) {
  const TempDir dir;
  const auto noting = [&](const std::string& name) {
    const std::string answer = "echo '{\"peer\": \"" + name + "\", \"seconds\": [1]}'";
    return Contestant{
        shell(answer + "; while read r; do printf " + name + " >> " + dir / "turns" + "; " + answer + "; done"), "go"};
  };
  hold({.ours = noting("a"), .peers = {noting("b"), noting("c")}, .limit = noting("d"), .rounds = 3});
  EXPECT_EQ(dir.read("turns"), "abcdabcdabcd");
}

/// Writes one line into the file when it starts and one letter per request.
Contestant noting(const TempDir& dir, const std::string& name, const std::string& request) {
  const std::string answer = "echo '{\"peer\": \"" + name + "\", \"seconds\": [1]}'";
  const std::string file = dir / "turns";
  return {shell("printf ' " + name + ":' >> " + file + "; " + answer + "; while read r; do printf $r >> " + file +
                "; " + answer + "; done"),
          request};
}

TEST(BenchContest, SidesThatStayAreStartedOnce) {
  const TempDir dir;
  Sides sides;
  for (const auto* request : {"x", "y"})
    hold({.ours = noting(dir, "a", request), .peers = {noting(dir, "b", request)}, .rounds = 1}, sides);
  EXPECT_EQ(dir.read("turns"), " a: b:xxyy");
}

TEST(BenchContest, ASideThatFailedIsStartedAnew) {
  const Contestant once{shell("echo '{\"peer\": \"once\"}'; read r; echo '{\"error\": \"'$r'\"}'; read r; "
                              "echo '{\"error\": \"the same program\"}'"),
                        "lost"};
  Sides sides;
  for (int i = 0; i < 2; ++i) expect_error([&] { hold({.ours = once, .rounds = 1}, sides); }, {"lost"});
}

// Ours, the peer, ours anew; each program is asked for both contests before it goes.
TEST(BenchContest, SidesApartNeverRunTogether) {
  const TempDir dir;
  std::vector<Contest> contests;
  for (const auto* request : {"x", "y"})
    contests.push_back(
        {.ours = noting(dir, "a", request), .peers = {noting(dir, "b", request), noting(dir, "b", "z")}, .rounds = 3});
  const std::vector<Outcome> outcomes = hold_apart(contests);
  EXPECT_EQ(dir.read("turns"), " a:xxyy b:xxxyyyzzzzzz a:xy");
  for (const Outcome& outcome : outcomes) {
    EXPECT_EQ(outcome.ours.seconds.size(), 3u);
    for (const Answers& peer : outcome.peers) EXPECT_EQ(peer.seconds.size(), 3u);
  }
}

TEST(BenchContest, ApartAFailureEndsItsContestOnly) {
  const Contestant good{echoing("{\"seconds\": [1]}"), "1"}, bad{shell("echo no memory >&2; exit 1"), "1"};
  const std::vector<Outcome> outcomes =
      hold_apart({{.ours = bad, .peers = {good}}, {.ours = good, .peers = {bad, good}}});
  Figure figure{.name = "f"};
  expect_error([&] { fill(figure, outcomes[0], times(1)); }, {"no memory"});
  fill(figure, outcomes[1], times(1));
  EXPECT_EQ(*figure.value, 1);
  EXPECT_EQ(figure.peers.size(), 1u);
  EXPECT_NE(figure.note.find("no memory"), std::string::npos);
}

TEST(BenchContest, AFigureNamesTheDeviceOfOurSide) {
  Figure figure{.name = "f"};
  const Contestant ours{shell("echo '{\"peer\": \"x\", \"device\": \"card 7\"}'; read r; echo '{\"seconds\": [1]}'"),
                        ""};
  fill(figure, hold({.ours = ours, .rounds = 1}), times(1));
  EXPECT_EQ(nlohmann::json::parse(to_json(figure)).at("device"), "card 7");
  EXPECT_NE(to_text(figure).find("on card 7"), std::string::npos);
}

TEST(BenchContest, MediansOfAllSamplesFillTheFigure) {
  const Outcome outcome = hold({.ours = {echoing("{\"seconds\": [0.5, 0.25, 4]}"), "1"},
                                .peers = {{echoing("{\"seconds\": [2, 1]}"), "1", "fast"}},
                                .limit = Contestant{echoing("{\"seconds\": [0.125]}"), "1"},
                                .rounds = 2});
  EXPECT_EQ(outcome.ours.seconds.size(), 6u);
  Figure figure{.name = "f"};
  fill(figure, outcome, times(1e3), times(1e3));
  EXPECT_DOUBLE_EQ(*figure.value, 500);
  EXPECT_DOUBLE_EQ(figure.peers.at(0).value, 1500);
  EXPECT_EQ(figure.peers.at(0).settings, "fast");
  EXPECT_DOUBLE_EQ(*figure.limit, 125);
  EXPECT_EQ(figure.note, "");
}

TEST(BenchContest, APeerThatFailsIsNotedOursMustNot) {
  for (const auto* answer : {"{\"seconds\": [-1]}", "{\"seconds\": []}", "{\"seconds\": [\"x\"]}", "{}", "oops"}) {
    const Contestant good{echoing("{\"seconds\": [1]}"), "1"}, bad{echoing(answer), "1"};
    const Outcome outcome = hold({.ours = good, .peers = {bad, good}, .limit = bad, .rounds = 2});
    Figure figure{.name = "f", .target = {Rule::limit_factor_at_most, 2}};
    fill(figure, outcome, times(1), times(1));
    EXPECT_EQ(figure.peers.size(), 1u) << answer;
    EXPECT_TRUE(figure.note.find("no peer: ") == 0 && figure.note.find("no limit: ") != std::string::npos)
        << figure.note;
    EXPECT_EQ(passes(figure), std::optional(false));
    EXPECT_THROW(hold({.ours = bad}), Error);
  }
}

TEST(BenchContest, NumbersBesideTheSecondsAreOneOrOnePerSample) {
  const Outcome outcome = hold(
      {.ours = {echoing("{\"seconds\": [1], \"waited\": [2, 8, 3], \"bytes\": {\"peak\": 7}}"), "1"}, .rounds = 2});
  EXPECT_EQ(outcome.ours.median("/waited"), 3);
  EXPECT_EQ(outcome.ours.median("/bytes/peak"), 7);
}

TEST(BenchContest, APeerWhoseAnswersLackANumberIsNoted) {
  const Contestant full{echoing("{\"seconds\": [1], \"bytes\": 7}"), "1"}, bare{echoing("{\"seconds\": [1]}"), "1"};
  Figure figure{.name = "f"};
  const auto bytes = [](const Answers& side) { return side.median("/bytes"); };
  fill(figure, hold({.ours = full, .peers = {bare, full}, .rounds = 1}), bytes);
  EXPECT_EQ(*figure.value, 7);
  EXPECT_EQ(figure.peers.size(), 1u);
  EXPECT_EQ(figure.note, "no peer: shell answered without /bytes");
  const Outcome lacking = hold({.ours = bare, .rounds = 1});
  EXPECT_THROW(fill(figure, lacking, bytes), Error);
}

TEST(BenchTeams, TheFastestOfEachTeamIsLeft) {
  const auto peer = [](const std::string& script, const std::string& settings) {
    return Contestant{shell(script), "1", settings};
  };
  // $0 is the variant's word: the seconds it answers.
  const std::string script = "echo '{\"peer\": \"p\"}'; while read r; do echo \"{\\\"seconds\\\": [$0]}\"; done";
  Contest contest{.ours = {echoing("{\"seconds\": [1]}"), "1"}, .rounds = 1};
  contest.peers = in_variants({peer(script, "bound"), peer("exit 4", "")}, {{"slow", {"3"}}, {"fast", {"2"}}});
  contest.peers.push_back(peer(script, "alone"));
  contest.peers.back().command.words.emplace_back("9");
  Outcome outcome = hold(contest);
  keep_fastest(contest, outcome);
  ASSERT_EQ(outcome.peers.size(), 3u);
  EXPECT_EQ(outcome.peers[0].median(), 2);
  EXPECT_EQ(outcome.peers[0].settings, "fast, bound; slow takes 1.50 times as long");
  EXPECT_FALSE(outcome.peers[1].ok());
  EXPECT_EQ(outcome.peers[2].settings, "alone");
}

TEST(BenchContest, Median) {
  EXPECT_EQ(median({3}), 3);
  EXPECT_EQ(median({9, 1, 5}), 5);
  EXPECT_EQ(median({9, 1, 5, 6}), 5.5);
}

TEST(BenchModels, CountsAreThoseOfTheModel) {
  // 6 blocks of 12 D^2 + 13 D, two embeddings, one norm; 2048 tokens x (6 N + 6 x 6 x 256 x 384).
  const double n = 6 * (12.0 * 384 * 384 + 13 * 384) + 512 * 384 + 768;
  EXPECT_DOUBLE_EQ(bench_model("bigger").step_flops(), 2048 * (6 * n + 36.0 * 256 * 384));
  // The 1.236 G parameters that a token of the Llama is multiplied by, 16 layers of attention over 4096 tokens.
  const double llama = 16 * (2048.0 * 5120 + 3 * 2048.0 * 8192 + 2 * 2048) + 128256.0 * 2048 + 2048;
  EXPECT_DOUBLE_EQ(bench_model("llama1b").step_flops(), 16384 * (6 * llama + 6.0 * 16 * 4096 * 2048));
  expect_error([] { bench_model("biger"); }, {"\"biger\"", "did you mean bigger?"});
}

TEST(BenchPeak, IsOfTheOrderOfGigaflops) {
  const double one = seconds_per_gigaflop(DType::f32, 1);
  EXPECT_GT(one, 1e-4);  // 10 Tflop/s on one thread does not exist
  EXPECT_LT(one, 10.0);
  EXPECT_GT(seconds_per_gigaflop(DType::bf16, 2), 0);
}

}  // namespace
}  // namespace sherd::bench
