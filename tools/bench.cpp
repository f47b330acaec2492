// `sherd bench [NAME-PREFIX] [--peer-python PATH] [--json]`: measures the figures whose names start so.
#include "tools/bench.h"

#include <sys/wait.h>

#include <cstdio>
#include <filesystem>
#include <memory>
#include <vector>

#include <nlohmann/json.hpp>

#include "runtime/tensor/error.h"
#include "tools/command.h"
#include "tools/flags.h"

namespace sherd {

namespace {

template <class T>
nlohmann::json or_null(const std::optional<T>& value) {
  return value ? nlohmann::json(*value) : nlohmann::json(nullptr);
}

std::optional<double> ratio(const Figure& figure) {
  if (!figure.value || !figure.peer_value || *figure.peer_value == 0) return std::nullopt;
  return *figure.value / *figure.peer_value;
}

void print_json(const Figure& figure) {
  nlohmann::ordered_json line;
  line["name"] = figure.name;
  line["value"] = or_null(figure.value);
  line["unit"] = figure.unit;
  line["peer"] = figure.peer.empty() ? nlohmann::json(nullptr) : nlohmann::json(figure.peer);
  line["peer_value"] = or_null(figure.peer_value);
  line["ratio"] = or_null(ratio(figure));
  line["limit"] = or_null(figure.limit);
  line["target"] = or_null(figure.target);
  line["pass"] = or_null(figure.pass);
  if (!figure.note.empty()) line["note"] = figure.note;
  fmt::print("{}\n", line.dump());
}

void print_text(const Figure& figure) {
  std::string text = fmt::format("{:<24} ", figure.name);
  text += figure.value ? fmt::format("{:>9.1f} {}", *figure.value, figure.unit) : "not measured";
  if (figure.target) text += fmt::format("  target {:g}", *figure.target);
  if (figure.limit) text += fmt::format("  limit {:.1f}", *figure.limit);
  if (figure.pass) text += *figure.pass ? "  pass" : "  FAIL";
  if (figure.peer_value)
    text += fmt::format("  {}: {:.1f}, ratio {:.2f}", figure.peer, *figure.peer_value, *ratio(figure));
  if (!figure.note.empty()) text += "  (" + figure.note + ")";
  fmt::print("{}\n", text);
}

Figure measure(const Benchmark& benchmark, const BenchOptions& options) {
  try {
    return benchmark.measure(benchmark.name, options);
  } catch (const Error& error) {
    Figure figure;
    figure.name = benchmark.name;
    figure.pass = false;
    figure.note = error.what();
    return figure;
  }
}

std::vector<Benchmark> benchmarks(std::string_view prefix) {
  std::vector<Benchmark> all, chosen;
  for (const Benchmark& b : dispatch_benchmarks()) all.push_back(b);
  std::string names;
  for (const Benchmark& b : all) {
    if (b.name.starts_with(prefix)) chosen.push_back(b);
    names += fmt::format("{}{}", names.empty() ? "" : ", ", b.name);
  }
  check(!chosen.empty(), "no figure's name starts with \"{}\"; there are {}", prefix, names);
  return chosen;
}

std::string shell_word(std::string_view word) {
  std::string text = "'";
  for (char c : word) text += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return text + "'";
}

// The source tree: the nearest folder above the program, or above the working directory, that has the peers.
std::filesystem::path find_peer(std::string_view script) {
  const std::filesystem::path starts[] = {std::filesystem::read_symlink("/proc/self/exe").parent_path(),
                                          std::filesystem::current_path()};
  for (const auto& start : starts)
    for (std::filesystem::path at = start; at != at.root_path(); at = at.parent_path())
      if (const auto file = at / "tools/bench/peers" / script; std::filesystem::exists(file)) return file;
  fail("tools/bench/peers/{} is found neither above {} nor above {}", script, starts[0].string(), starts[1].string());
}

}  // namespace

std::string run_peer(const std::string& python, std::string_view script) {
  const std::string command = shell_word(python) + " " + shell_word(find_peer(script).string());
  const auto close = [](std::FILE* pipe) { ::pclose(pipe); };
  std::unique_ptr<std::FILE, decltype(close)> pipe(::popen(command.c_str(), "r"), close);
  check(pipe != nullptr, "{} could not be started", command);
  std::string text;
  char buffer[4096];
  while (const std::size_t n = std::fread(buffer, 1, sizeof buffer, pipe.get())) text.append(buffer, n);
  const int status = ::pclose(pipe.release());
  check(WIFEXITED(status) && WEXITSTATUS(status) == 0, "{} failed with status {}", command,
        WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status));
  return text;
}

int run_bench(std::span<const std::string_view> args) {
  BenchOptions options;
  bool json = false;
  ConfigTable table;
  table.add("peer_python", &options.peer_python, "Python that has the peer (torch); no peer without it");
  table.add("json", &json, "one JSON object per figure");
  const CommandLine line = parse_command_line(table, args);
  if (line.help) {
    fmt::print("sherd bench [NAME-PREFIX] [flags]: measures figures\n{}\nFigures:\n", table.help());
    for (const Benchmark& b : benchmarks("")) fmt::print("  {:<24} {}\n", b.name, b.summary);
    return 0;
  }
  apply_flags(table, line);
  check(line.words.size() <= 1, "sherd bench takes one name prefix, got {} words", line.words.size());
  bool passed = true;
  for (const Benchmark& benchmark : benchmarks(line.words.empty() ? "" : line.words[0])) {
    const Figure figure = measure(benchmark, options);
    json ? print_json(figure) : print_text(figure);
    std::fflush(stdout);
    passed = passed && figure.pass.value_or(true);
  }
  return passed ? 0 : 1;
}

}  // namespace sherd
