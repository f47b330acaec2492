// What `sherd plan`, `simulate` and `diagnose` read: models of devices and fabrics, calibrations, timelines, metrics.
// An error of the first four says where: "x: line 3, column 7: ...".
#include <algorithm>
#include <filesystem>
#include <stdexcept>

#include <fmt/format.h>

#include "runtime/exec/calibration.h"
#include "runtime/exec/price_json.h"
#include "runtime/exec/simulate.h"
#include "tests/soak/hostile_targets.h"
#include "tests/support/source_path.h"
#include "tests/support/temp_dir.h"
#include "tools/diagnose/report.h"
#include "tools/plan/presets.h"

namespace sherd::testing {

namespace {

/// A text with a parser, whose errors begin with line and column.
class PlacedReader : public HostileReader {
 public:
  using Parse = void (*)(const std::string& input);
  PlacedReader(std::vector<std::string> samples, Parse parse) : samples_(std::move(samples)), parse_(parse) {}
  std::vector<std::string> samples() override { return samples_; }
  void read(const std::string& input) override {
    try {
      parse_(input);
    } catch (const Error& error) {
      const std::string& said = error.message();
      if (!said.starts_with("x: line ") || said.find(", column ") == said.npos)
        throw std::logic_error("an Error without line and column: " + said.substr(0, 200));
      if (said.size() > 1000) throw std::logic_error(fmt::format("an Error of {} characters", said.size()));
      throw;
    }
  }

 private:
  const std::vector<std::string> samples_;
  const Parse parse_;
};

std::vector<std::string> presets_of(std::string_view folder) {
  std::vector<std::string> texts;
  for (const plan::PresetFile& file : plan::preset_files())
    if (file.folder == folder) texts.emplace_back(file.text);
  return texts;
}

Calibration made_calibration() {
  const Rate rate{{{1, 1e10}, {1e9, 4e10}}, "made up", true};
  Calibration made{.device = {.name = "a CPU", .memory_bytes = 1 << 30, .read = rate, .copied = rate, .source = "s"},
                   .build = "b",
                   .time = 1};
  made.device.products[DType::f32] = rate;
  made.device.links["ranks"] = {.name = "ranks", .link = {1e-5, 0, 1e9}, .source = "s"};
  made.device.links["ranks"].curves[0] = {{2, 1e3, 1e-5}, {2, 1e6, 1e-3}};
  made.calls.rows["linear f32"] = {{1e6, 1e4, 1e-5}, {1e9, 1e6, 1e-2}};
  return made;
}

constexpr std::string_view kTimeline =
    "sherd timeline 1\nrank 0 of 4\nbase 0 100 0 0 0 0 0\ngroup dp#1 dp 4x1\nat blocks.0 forward\n"
    "call linear contraction f32 1e6 4e3 \"f32[2,3] f32[4,3]\"\n"
    "item 0 gather unshard blocks.1 dp#1 gather 4096 after - uses r1,w2\nmemory unsharded 4096\nwait 0 touch\n"
    "at \"\" backward\nitem 1 reduce reduce blocks.1 dp#1 scatter 4096 after 0 uses r2\nmemory unsharded -4096\n"
    "call add pointwise bf16 0 4e3 x\nwait 1 throttle\n";

/// What is accepted is played, too.
void play(const std::string& input) {
  const Timeline step = Timeline::parse(input, "x");
  if (step.ranks > 1024) return;
  Cluster cluster{.device = made_calibration().device, .hosts = {1, step.ranks}, .in = {}, .out = {}};
  cluster.in = cluster.device.links.at("ranks");
  try {
    simulate(step, cluster);
  } catch (const Error&) {}  // products of a type without a rate
}

/// Metrics of runs; one in eight goes through all of `sherd diagnose`, which plays a dozen steps.
class MetricsReader : public HostileReader {
 public:
  std::vector<std::string> samples() override {
    std::vector<std::string> texts;
    for (const auto& entry : std::filesystem::directory_iterator(source_path("docs/slow")))
      if (entry.path().extension() == ".jsonl") texts.push_back(text_of_file(entry.path()));
    std::ranges::sort(texts);  // a folder has no order
    return texts;
  }
  void read(const std::string& input) override {
    const diagnose::RunFile run = diagnose::read_run(dir_.write("x.jsonl", input));
    const diagnose::Shares shares = diagnose::shares_of(run);
    if (input.size() % 8 != 0) return;
    const diagnose::PricedRun priced(run, shares, nullptr, "");
    const diagnose::RunCase facts{run, shares, priced};
    const diagnose::Diagnosis diagnosis{run, shares, findings_of(facts), bound_of(facts), run.notes, {}};
    to_text(diagnosis);
    to_json(diagnosis);
  }

 private:
  TempDir dir_;
};

}  // namespace

std::vector<HostileTarget> hostile_prices() {
  const auto placed = [](std::vector<std::string> (*samples)(), PlacedReader::Parse parse) {
    return [=] { return std::make_unique<PlacedReader>(samples(), parse); };
  };
  // A value of JSON takes a hundred bytes, and there are a quarter of a million at most; a line of a timeline two.
  constexpr std::int64_t kOfJson = std::int64_t{96} << 20;
  return {
      {"device", kOfJson,
       placed([] { return presets_of("devices"); }, [](const std::string& x) { parse_device_model(x, "x"); })},
      {"fabric", kOfJson,
       placed([] { return presets_of("fabrics"); }, [](const std::string& x) { parse_fabric_model(x, "x"); })},
      {"calibration", kOfJson,
       placed([] { return std::vector{print(made_calibration())}; },
              [](const std::string& x) { parse_calibration(x, "x"); })},
      {"timeline", kOfJson, placed([] { return std::vector{std::string(kTimeline)}; }, play)},
      {"metrics", kOfJson, [] { return std::make_unique<MetricsReader>(); }, 10},
  };
}

}  // namespace sherd::testing
