// `sherd bench [NAME-PREFIX ...] [flags]`: measures the figures whose names start so.
#include "tools/bench/bench.h"

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <iterator>
#include <ranges>

#include <unistd.h>

#include "runtime/op/core/device_library.h"
#include "runtime/tensor/indices.h"
#include "tools/bench/child.h"
#include "tools/cli/command.h"
#include "tools/train/exit_status.h"
#include "tools/train/flags.h"

namespace sherd {

namespace {

using namespace bench;

std::vector<Benchmark> all_benchmarks(bool smoke) {
  std::vector<Benchmark> all;
  for (const auto family : {step_benchmarks, call_benchmarks, ranks_benchmarks, overlap_benchmarks, units_benchmarks,
                            state_benchmarks, gpu_benchmarks, loss_benchmarks})
    for (Benchmark& row : family(smoke)) all.push_back(std::move(row));
  return all;
}

// Benchmarks of the first prefix, then of the second, each once. Without a prefix all, but for those of a GPU where
// there is none.
std::vector<Benchmark> matching(const std::vector<std::string>& prefixes, bool smoke) {
  std::vector<Benchmark> all = all_benchmarks(smoke), chosen;
  if (prefixes.empty()) {
    const bool has_gpu = cuda_library().backend && cuda_library().backend->num_devices() > 0;
    if (!has_gpu) std::erase_if(all, [](const Benchmark& row) { return row.name.starts_with("gpu."); });
    return all;
  }
  const std::vector<Benchmark> known = all;
  for (const std::string& prefix : prefixes) {
    const auto matches = [&](const Benchmark& row) { return row.name.starts_with(prefix); };
    check_usage(std::ranges::any_of(known, matches),
                "no figure's name starts with \"{}\"{}; `sherd bench --help` lists all", prefix,
                did_you_mean(prefix, known));
    std::ranges::copy_if(all, std::back_inserter(chosen), matches);
    std::erase_if(all, matches);
  }
  return chosen;
}

void read(Figure& figure, const std::string& prefix, const std::vector<Benchmark::Reading>& detail,
          const Answers& side) {
  for (const auto& [key, value] : detail)
    if (value) figure.detail[prefix + key] = value(side);
    else figure.detail[prefix + key] = side.answers.back().at(key);
}

Figure measured(const Benchmark& row, BenchRun& run) {
  const bool is_judged = !run.smoke() && !run.is_against();
  Figure figure{.name = row.name, .unit = row.unit, .target = is_judged ? row.target : Target{}};
  try {
    const Outcome outcome = row.outcome ? row.outcome(run) : Outcome();
    if (row.value) fill(figure, outcome, row.value, row.limit);
    read(figure, "", row.detail, outcome.ours);
    for (const Answers& peer : outcome.peers)
      if (peer.ok()) read(figure, "peer_", row.peer_detail, peer);
    if (row.more) row.more(figure, outcome, run);
  } catch (const std::exception& error) {
    figure.value.reset();
    figure.note = error.what();
  }
  return figure;
}

void print_help(const ConfigTable& table) {
  fmt::print(
      "sherd bench [NAME-PREFIX ...] [flags]: measures figures, each beside its peer from the same run\n{}\nFigures:\n",
      table.help());
  for (const Benchmark& row : all_benchmarks(false))
    fmt::print("  {:<28} {}{}{}\n", row.name, row.summary, row.target.rule == Rule::none ? "" : ": ",
               describe(row.target));
}

}  // namespace

int run_bench(std::span<const std::string_view> args) {
  if (!args.empty() && args[0] == "--child") return run_child(args.subspan(1));
  std::string first_python = "venv", more_pythons;
  BenchOptions options;
  bool json = false;
  ConfigTable table;
  table.add("python", &first_python,
            "Python whose torch is the peer that targets are judged against; \"venv\": that of tools/setup --python "
            "(build/venv, "
            "or SHERD_VENV); \"none\" for none");
  table.add("peer_python", &more_pythons, "Pythons whose torches are printed beside it, joined by commas");
  table.add("against", &options.against,
            "another build's program sherd: the only peer, without targets, to compare before and after");
  table.add("group", text_field(options.group), fmt::format("of figures of several ranks, {}", kGroupHelp));
  table.add("json", &json, "one JSON object per figure");
  table.add("smoke", &options.smoke, "tiny sizes, one round, no targets: shows that all sides run");
  const CommandLine line = parse_command_line(table, args);
  if (line.help) {
    print_help(table);
    return 0;
  }
  for (const CommandLine::Flag& flag : line.flags)  // "a,b" and several flags both give several
    if (flag.key == "peer_python")
      for (const auto word : std::views::split(flag.text, ','))
        if (!word.empty()) options.pythons.emplace_back(word.begin(), word.end());
  apply_flags(table, line);
  if (!options.against.empty()) {
    check_usage(!table.is_given("python") && options.pythons.empty(),
                "--against makes the other build the only peer; leave out --python and --peer-python");
    options.against = program_of_build(options.against);
    first_python = "none";
  }
  if (first_python == "venv") first_python = python_of_venv();
  if (first_python != "none") options.pythons.insert(options.pythons.begin(), first_python);
  const std::vector<Benchmark> chosen = matching({line.words.begin(), line.words.end()}, options.smoke);

  std::signal(SIGPIPE, SIG_IGN);  // a side that has ended is an Error with its last words
  BenchRun run(std::move(options));
  bool passed = true;
  for (const std::size_t i : indices(chosen)) {
    const bool show = ::isatty(STDERR_FILENO) != 0;
    if (show) fmt::print(stderr, "\r\033[K[{}/{}] {} ...", i + 1, chosen.size(), chosen[i].name);
    const Figure figure = measured(chosen[i], run);
    if (show) fmt::print(stderr, "\r\033[K");
    fmt::print("{}\n", json ? to_json(figure) : to_text(figure));
    std::fflush(stdout);
    passed = passed && passes(figure).value_or(true);
  }
  return passed ? 0 : 1;
}

}  // namespace sherd
