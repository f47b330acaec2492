#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <sstream>

#include <unistd.h>

#include "runtime/tensor/error.h"
#include "tools/bench/bench.h"
#include "tools/bench/child.h"
#include "tools/cli/program.h"

namespace sherd::bench {

namespace {

// Asks the interpreter for its torch and the best settings for it: peers/settings.py.
Contestant find_torch(const std::string& python) {
  Contestant torch{{{python}, {}}, ""};
  try {
    check(python != python_of_venv() || std::filesystem::exists(python),
          "there is no {}; tools/setup --python makes that environment, --python names another", python);
    const Side side(SideCommand{{python, source_file("peers/settings.py").string()}, {}});
    const nlohmann::json& found = side.greeting();
    torch.settings = found.at("settings").get<std::string>();
    for (const auto& [name, value] : found.at("environment").items())
      torch.command.environment.push_back(fmt::format("{}={}", name, value.get<std::string>()));
  } catch (const std::exception& error) { torch.error = error.what(); }
  return torch;
}

std::vector<std::string> split(const std::string& text) {
  std::istringstream words(text);
  return {std::istream_iterator<std::string>(words), {}};
}

}  // namespace

std::function<Outcome(BenchRun&)> held(ContestRow row) {
  return [row = std::move(row)](BenchRun& run) { return run.hold(run.contest_of(row)); };
}

std::function<Outcome(BenchRun&)> held(std::string key, ContestRow row) {
  return [key = std::move(key), row = std::move(row)](BenchRun& run) { return run.shared(run.sized(key), row); };
}

std::string BenchRun::sized(std::string_view text) const {
  std::string result(text);
  for (std::size_t at; (at = result.find('{')) != std::string::npos;) {
    const std::size_t bar = result.find('|', at), end = result.find('}', at);
    result.replace(at, end + 1 - at,
                   smoke() ? result.substr(bar + 1, end - bar - 1) : result.substr(at + 1, bar - at - 1));
  }
  return result;
}

SideCommand BenchRun::child_of(const std::string& text, int ranks) const {
  std::vector<std::string> words = split(sized(text));
  if (ranks > 1 && options_.group != "auto") words.insert(words.end(), {"--group", options_.group.text()});
  return child(words, ranks);
}

Contest BenchRun::contest_of(const ContestRow& row) {
  const std::string request = sized(row.request);
  const auto or_ours = [&](const std::string& text) { return text.empty() ? request : sized(text); };
  Contest contest{.ours = {child_of(row.ours, row.ranks), request}, .rounds = smoke() ? 1 : row.rounds};
  if (!row.torch.empty())
    contest.peers = torch_contestants(split(sized(row.torch)), or_ours(row.torch_request), row.torch_threads);
  if (!row.variants.empty()) contest.peers = in_variants(contest.peers, row.variants);
  for (const ContestRow::Other& other : row.others)
    contest.peers.push_back(
        {.command = child_of(other.words, other.ranks), .request = or_ours(other.request), .name = other.name});
  if (!row.limit.empty()) contest.limit = {child(split(sized(row.limit)), 1), or_ours(row.limit_request)};
  return contest;
}

std::string python_of_venv() {
  const char* named = std::getenv("SHERD_VENV");
  std::filesystem::path folder = named ? named : "build/venv";
  try {
    if (!named) folder = source_file("peers").parent_path() / "../../build/venv";
  } catch (const Error&) {}  // outside of a source tree
  return (folder / "bin/python").lexically_normal();
}

std::filesystem::path source_file(std::string_view name) {
  const std::filesystem::path starts[] = {sibling_program("").parent_path(), std::filesystem::current_path()};
  for (const auto& start : starts)
    for (std::filesystem::path at = start; at != at.root_path(); at = at.parent_path())
      if (const auto file = at / "tools/bench" / name; std::filesystem::exists(file)) return file;
  fail("tools/bench/{} is found neither above {} nor above {}; run it inside the source tree", name, starts[0].string(),
       starts[1].string());
}

Contestant contestant_beside(std::string_view name, std::string request, const std::vector<std::string>& before) {
  const auto file = sibling_program(name);
  Contestant result{{before, {}}, std::move(request)};
  if (std::filesystem::exists(file)) result.command.words.push_back(file.string());
  else result.error = fmt::format("{} is not built", file.string());
  return result;
}

std::string program_of_build(const std::string& path) {
  namespace fs = std::filesystem;
  for (const fs::path& program : {fs::path(path), fs::path(path) / "bin/sherd"})
    if (fs::is_regular_file(program) && ::access(program.c_str(), X_OK) == 0) return fs::canonical(program);
  fail("--against {}: there is no program; name the sherd of another build, such as OTHER/build/release/bin/sherd",
       path);
}

Outcome BenchRun::hold(const Contest& contest) const {
  Sides sides;
  return hold(contest, sides);
}

Outcome BenchRun::hold(const Contest& contest, Sides& sides) const {
  const Contest held = opposed(contest);
  Outcome outcome = bench::hold(held, sides);
  keep_fastest(held, outcome);
  for (Answers& peer : outcome.peers)
    if (is_against() && !peer.ok()) peer.error = "the other build does not answer as this one does: " + peer.error;
  return outcome;
}

std::optional<Contestant> BenchRun::other_build(Contestant ours) const {
  bool is_a_child = false;
  for (std::string& word : ours.command.words)
    if (is_against() && word == sibling_program("sherd")) {
      word = options_.against;
      is_a_child = true;
    }
  if (!is_a_child) return std::nullopt;
  ours.name = options_.against;
  return ours;
}

Contest BenchRun::opposed(Contest contest) const {
  if (!is_against()) return contest;
  contest.peers.clear();
  if (std::optional<Contestant> other = other_build(contest.ours)) contest.peers.push_back(std::move(*other));
  return contest;
}

const std::vector<Contestant>& BenchRun::torches() {
  if (torches_.empty())
    for (const std::string& python : options_.pythons) torches_.push_back(find_torch(python));
  return torches_;
}

std::vector<Contestant> BenchRun::torch_contestants(const std::vector<std::string>& words, const std::string& request,
                                                    int threads) {
  std::vector<Contestant> result;
  if (threads > 0) result = torches();
  else
    for (const std::string& python : options_.pythons) result.push_back({{{python}, {}}, ""});
  for (Contestant& torch : result) {
    torch.request = request;
    if (torch.error.empty()) torch.command.words.push_back(source_file("peers/" + words[0]).string());
    torch.command.words.insert(torch.command.words.end(), words.begin() + 1, words.end());
    if (threads > 0) torch.command.environment.push_back(fmt::format("OMP_NUM_THREADS={}", threads));
  }
  return result;
}

const std::vector<Outcome>& BenchRun::shared_apart(const std::string& key,
                                                   const std::function<std::vector<Contest>()>& contests) {
  const auto known = outcomes_apart_.find(key);
  if (known != outcomes_apart_.end()) return known->second;
  sides_.stop_all();
  std::vector<Contest> opposing;
  for (Contest& contest : contests()) opposing.push_back(opposed(std::move(contest)));
  return outcomes_apart_.emplace(key, hold_apart(opposing)).first->second;
}

const Outcome& BenchRun::shared(const std::string& key, const ContestRow& row) {
  const auto known = outcomes_.find(key);
  return known != outcomes_.end() ? known->second : outcomes_.emplace(key, hold(contest_of(row))).first->second;
}

}  // namespace sherd::bench
