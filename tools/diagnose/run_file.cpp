#include "tools/diagnose/run_file.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <utility>

#include <nlohmann/json.hpp>

#include "runtime/tensor/indices.h"
#include "tools/diagnose/shares.h"
#include "tools/train/exit_status.h"
#include "tools/train/version.h"

namespace sherd::diagnose {

namespace {

using nlohmann::json;

constexpr std::int64_t kSettling = 3;  // steps of a run, after which StepLog counts
constexpr double kMost = 1e18;
constexpr std::size_t kLongestLine = std::size_t{4} << 20;
constexpr int kDeepest = 16, kMostValues = 1 << 18;

/// A value as messages show it.
std::string shown(const json& value) {
  if (value.is_structured()) return value.is_array() ? "a list" : "an object";
  std::string text = value.dump();
  if (text.size() > 60) text = text.substr(0, 60) + "...";
  return text;
}

/// Reads members of one line, and says where it fails.
class Line {
 public:
  Line(const std::string& path, int number) : path_(path), number_(number) {}

  template <class... Args>
  [[noreturn]] void fail_here(fmt::format_string<Args...> format, Args&&... args) const {
    throw ExitError(kUsage,
                    fmt::format("{}, line {}: {}", path_, number_, fmt::format(format, std::forward<Args>(args)...)));
  }
  /// A number of at least 0.
  double number(const json& object, const char* key) const {
    const auto found = object.is_object() ? object.find(key) : object.end();
    if (found == object.end()) fail_here("there is no \"{}\"", key);
    return number(*found, std::string_view(key));
  }
  double number(const json& value, std::string_view what) const {
    if (!value.is_number()) fail_here("\"{}\" is {}, and should be a number", what, shown(value));
    const auto number = value.get<double>();
    if (!(number >= 0 && number <= kMost)) fail_here("\"{}\" is {}, and should be from 0 to 1e18", what, number);
    return number;
  }
  std::int64_t count(const json& object, const char* key) const {
    return static_cast<std::int64_t>(number(object, key));
  }
  const json& object(const json& outer, const char* key) const {
    const auto found = outer.find(key);
    if (found == outer.end() || !found->is_object()) fail_here("\"{}\" should be an object", key);
    return *found;
  }
  const json& list(const json& object, const char* key) const {
    const auto found = object.is_object() ? object.find(key) : object.end();
    if (found == object.end() || !found->is_array()) fail_here("\"{}\" should be a list", key);
    return *found;
  }
  std::string text(const json& object, const char* key) const {
    const auto found = object.find(key);
    if (found == object.end() || !found->is_string()) fail_here("\"{}\" should be a text", key);
    return found->get<std::string>();
  }

 private:
  const std::string& path_;
  const int number_;
};

/// The line as JSON, or why it is none, with the column.
struct ParsedLine {
  json object{};
  std::string wrong{};
};
ParsedLine parse_line(const Line& line, const std::string& text) {
  if (text.size() > kLongestLine) line.fail_here("it has {} bytes; {} are read at most", text.size(), kLongestLine);
  int values = 0;
  const json::parser_callback_t bounded = [&](int depth, json::parse_event_t event, json&) {
    if (depth > kDeepest) line.fail_here("values nest deeper than {} levels", kDeepest);
    if (event == json::parse_event_t::value && ++values > kMostValues)
      line.fail_here("there are more than {} values", kMostValues);
    return true;
  };
  try {
    ParsedLine parsed{.object = json::parse(text, bounded)};
    if (!parsed.object.is_object()) parsed.wrong = "it is no JSON object";
    return parsed;
  } catch (const json::parse_error& error) {
    return {.wrong = fmt::format("no JSON goes on so at column {}", error.byte)};
  } catch (const json::out_of_range&) { return {.wrong = "a number is too large for a double"}; }
}

UnitTime::Part read_part(const Line& line, const json& unit, const char* key) {
  const auto found = unit.find(key);
  if (found == unit.end()) line.fail_here("a unit has no \"{}\"", key);
  return {line.number(*found, "calls"), line.number(*found, "seconds"), line.number(*found, "exposed_transfer_seconds"),
          line.number(*found, "exposed_skew_seconds")};
}

RunTimes read_times(const Line& line, const json& object) {
  RunTimes times;
  times.steps.count = line.count(object, "steps");
  const json& steps = line.object(object, "step_seconds");
  times.steps.p50 = line.number(steps, "p50");
  times.steps.mad = line.number(steps, "mad");
  for (const json& rank : line.list(object, "ranks")) {
    if (std::cmp_not_equal(line.count(rank, "rank"), times.ranks.size()))
      line.fail_here("\"ranks\" has rank {} in the place of rank {}", line.count(rank, "rank"), times.ranks.size());
    times.ranks.push_back({.rank = static_cast<int>(times.ranks.size()),
                           .host = line.text(rank, "host"),
                           .calls = line.count(rank, "calls"),
                           .median_seconds = line.number(rank, "median_lateness_seconds")});
  }
  for (const json& rank : line.list(object, "stragglers")) {
    const auto known = [&] { return rank.is_number_unsigned() && rank.get<std::size_t>() < times.ranks.size(); };
    if (!known()) line.fail_here("a straggler is no rank: {}", shown(rank));
    times.stragglers.push_back(rank.get<int>());
  }
  for (const json& unit : line.list(object, "units"))
    times.units.push_back({line.text(unit, "unit"), read_part(line, unit, "gather"), read_part(line, unit, "reduce")});
  return times;
}

// A run that has lost replicas, or that goes on with fewer ranks, has fewer than its header says.
std::vector<RankHost> read_hosts(const Line& line, const json& host) {
  std::vector<RankHost> hosts(line.list(host, "cpu").size());
  const std::pair<const char*, double RankHost::*> counts[] = {
      {"cpu", &RankHost::cpu},
      {"minor_faults", &RankHost::minor_faults},
      {"major_faults", &RankHost::major_faults},
      {"involuntary_switches", &RankHost::involuntary_switches},
      {"throttled", &RankHost::throttled},
      {"swap_in", &RankHost::swap_in},
      {"cpus", &RankHost::cpus},
      {"online", &RankHost::online},
      {"threads", &RankHost::threads}};
  for (const auto& [key, count] : counts) {
    const json& of_ranks = line.list(host, key);
    if (of_ranks.size() != hosts.size())
      line.fail_here("\"{}\" is of {} ranks, and \"cpu\" of {}", key, of_ranks.size(), hosts.size());
    for (const std::size_t r : indices(hosts)) hosts[r].*count = line.number(of_ranks[r], std::string_view(key));
  }
  return hosts;
}

StepMetrics read_step(const Line& line, const json& object) {
  StepMetrics m;
  m.step = line.count(object, "step");
  m.tokens = line.count(object, "tokens");
  if (m.tokens == 0) line.fail_here("\"tokens\" is 0, and a step has some");
  m.step_seconds = line.number(object, "step_seconds");
  const auto seconds = object.find("seconds");
  if (seconds == object.end())
    line.fail_here(
        "there is no \"seconds\": a version of Sherd wrote it that did not yet say what a step is made of; "
        "train again with this one (sherd {})",
        kVersion);
  for (const std::size_t p : indices(m.seconds))
    m.seconds[p] = line.number(*seconds, std::string(name(static_cast<StepPart>(p))).c_str());
  m.exposed_comm_seconds = line.number(object, "exposed_comm_seconds");
  m.exposed_skew_seconds = line.number(object, "exposed_skew_seconds");
  if (object.contains("mfu")) m.mfu = line.number(object, "mfu");
  if (object.contains("captured")) m.captured = {object.at("captured") == true, line.text(object, "why")};
  if (object.contains("save")) m.save = ckpt::SnapshotCost{0, line.number(object.at("save"), "seconds")};
  if (object.contains("val_loss") && object.at("val_loss").is_number())
    m.val_loss = object.at("val_loss").get<double>();
  if (object.contains("memory_peak_bytes")) m.memory_peak_bytes = line.count(object, "memory_peak_bytes");
  if (object.contains("run_times")) m.times = read_times(line, object.at("run_times"));
  if (m.times && object.contains("host")) m.times->hosts = read_hosts(line, object.at("host"));
  return m;
}

void set_config(ConfigTable& table, const json& config, const std::string& prefix, std::vector<std::string>& unknown) {
  for (const auto& [name, value] : config.items()) {
    const std::string key = prefix + name;
    if (value.is_object() && prefix.empty()) set_config(table, value, key + ".", unknown);
    else if (value.is_structured() || !table.contains(key)) unknown.push_back(key);
    else if (!value.is_null()) table.set_text(key, value.is_string() ? value.get<std::string>() : value.dump(), key);
  }
}

void read_header(const Line& line, const json& header, RunFile& run) {
  if (!header.contains("config") || !header.at("config").is_object())
    line.fail_here("a metrics file of `sherd train` begins with {{\"config\": ...}}, and this does not");
  run.version = line.text(header, "version");
  const std::int64_t ranks = line.count(header, "ranks");
  if (ranks < 1 || ranks > (1 << 20)) line.fail_here("\"ranks\" is {}", ranks);
  run.ranks = static_cast<int>(ranks);
  std::vector<std::string> unknown;
  try {
    ConfigTable table = bind(run.config);
    set_config(table, header.at("config"), "", unknown);
    resolve(run.config);
  } catch (const Error& error) { line.fail_here("the config of the run cannot be read: {}", error.message()); }
  if (!unknown.empty())
    run.notes.push_back(fmt::format("sherd {} wrote keys that this one does not know, which are left out: {}",
                                    run.version, fmt::join(unknown, ", ")));
}

}  // namespace

const StepLine& RunFile::last_evaluation() const {
  const auto found = std::ranges::find_if(settled.rbegin(), settled.rend(),
                                          [](const StepLine& line) { return line.metrics.times.has_value(); });
  return found == settled.rend() ? settled.back() : *found;
}

double RunFile::step_seconds() const {
  double sum = 0;
  for (const StepLine& line : settled) sum += line.metrics.step_seconds;
  return sum / static_cast<double>(settled.size());
}

double RunFile::tokens() const {
  double sum = 0;
  for (const StepLine& line : settled) sum += static_cast<double>(line.metrics.tokens);
  return sum / static_cast<double>(settled.size());
}

RunFile read_run(const std::string& path) {
  std::ifstream file(path);
  check_usage(file.good(), "{} cannot be opened; give the file that `sherd train --metrics` wrote", path);
  RunFile run{.path = path};
  int number = 0;
  std::int64_t steps = 0;
  std::string cut;        // why the last line is none
  std::size_t hosts = 0;  // ranks of the last evaluation
  for (std::string text; std::getline(file, text);) {
    const Line line(path, ++number);
    if (!cut.empty())
      Line(path, number - 1).fail_here("it is cut off, and others follow: two programs have written here ({})", cut);
    const auto [object, wrong] = parse_line(line, text);
    if (number == 1) {
      if (!wrong.empty())
        line.fail_here("it is no JSON object, as a metrics file of `sherd train` begins with ({})", wrong);
      read_header(line, object, run);
      hosts = static_cast<std::size_t>(run.ranks);
      continue;
    }
    cut = wrong;
    if (!cut.empty()) continue;
    if (object.contains("config"))
      line.fail_here(
          "another run begins here, and means over two say nothing: give each a file of its own "
          "(head -n {} has the first)",
          number - 1);
    StepMetrics metrics = read_step(line, object);
    if (metrics.times && !metrics.times->hosts.empty()) hosts = metrics.times->hosts.size();
    if (++steps > kSettling) run.settled.push_back({number, std::move(metrics)});
  }
  check_usage(number > 0, "{} is empty; give the file that `sherd train --metrics` wrote", path);
  if (!cut.empty())
    run.notes.push_back(fmt::format("line {} is cut off and left out: the run was killed, or goes on", number));
  check_usage(run.settled.size() >= kFewestSteps,
              "{} has {} steps; a diagnosis wants {}, as the first {} record what the others do: train for more", path,
              steps, kFewestSteps + kSettling, kSettling);
  check_usage(run.step_seconds() > 0 && shares_of(run).total() > 0, "{}: the steps take 0 seconds, as it says", path);
  if (std::cmp_not_equal(hosts, run.ranks))
    run.notes.push_back(
        fmt::format("the run began on {} ranks and was on {} at its last evaluation", run.ranks, hosts));
  if (std::ranges::none_of(run.settled, [](const StepLine& line) { return line.metrics.times.has_value(); }))
    run.notes.push_back(
        "no evaluation is in it, whose lines say what units and ranks take; give --eval-every, or let the run end");
  return run;
}

}  // namespace sherd::diagnose
