#include "tools/walk/measure.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <random>

#include "runtime/exec/simulate.h"
#include "tools/bench/child.h"
#include "tools/bench/side.h"
#include "tools/train/ghost_step.h"
#include "tools/train/ghost_training.h"

namespace sherd::walk {

namespace {

constexpr std::chrono::hours kPatience{2};

std::string memory_key(int category) {
  return fmt::format("memory_bytes.{}", name(static_cast<MemoryCategory>(category)));
}

void raise(std::optional<double>& most, std::int64_t bytes) {
  most = std::max(most.value_or(0), static_cast<double>(bytes));
}

double tokens_of(const RowPlan& plan) { return static_cast<double>(plan.config.batch * plan.config.model.sequence); }

CategoryBytes bytes_of(const nlohmann::json& object) {
  CategoryBytes bytes{};
  for (int c = 0; c < kNumCategories; ++c)
    bytes[static_cast<std::size_t>(c)] = object.at(std::string(name(static_cast<MemoryCategory>(c))));
  return bytes;
}

/// Its collectives, by the columns of both.
constexpr comm::CommOp kCollectives[] = {comm::CommOp::all_gather, comm::CommOp::reduce_scatter,
                                         comm::CommOp::all_reduce};
std::string key_of(std::string_view of, comm::CommOp op) { return fmt::format("{}.{}", of, name(op)); }

// What a rank that fits a budget has predicted itself: it decides by prices, which it has measured.
void fill_predicted(RowPlan& plan, std::size_t rank, const nlohmann::json& answer) {
  Row& row = plan.row;
  table::PeakBytes& own = row.ranks[rank].predicted;
  own = {bytes_of(answer.at("peak_bytes")), bytes_of(answer.at("bytes_at_peak")), answer.at("total_peak_bytes")};
  for (int c = 0; c < kNumCategories; ++c)
    raise(row.at(memory_key(c)).predicted, own.peak[static_cast<std::size_t>(c)]);
  raise(row.at("memory_bytes.total").predicted, own.total);
  const double step = std::max(row.at("step_seconds").predicted.value_or(0), answer.at("seconds").get<double>());
  row.at("step_seconds").predicted = step;
  row.at("tokens_per_second").predicted = tokens_of(plan) / step;
}

// Times are those of the fastest step: what else happens on the machine only adds to them.
void fill_measured(RowPlan& plan, const nlohmann::json& answer) {
  Row& row = plan.row;
  const std::vector<double> seconds = answer.at("seconds");
  const auto fastest = static_cast<std::size_t>(std::ranges::min_element(seconds) - seconds.begin());
  double exposed = 0, skew = 0;
  const nlohmann::json& ranks = answer.at("ranks");
  row.ranks.resize(ranks.size());
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    if (ranks[r].contains("predicted")) fill_predicted(plan, r, ranks[r].at("predicted"));
    table::PeakBytes& own = row.ranks[r].measured;
    own = {bytes_of(ranks[r].at("peak_bytes")), bytes_of(ranks[r].at("bytes_at_peak")),
           ranks[r].at("total_peak_bytes")};
    for (int c = 0; c < kNumCategories; ++c)
      raise(row.at(memory_key(c)).measured, own.peak[static_cast<std::size_t>(c)]);
    raise(row.at("memory_bytes.total").measured, own.total);
    const auto share = 1 / static_cast<double>(ranks.size());
    exposed += share * ranks[r].at("exposed_seconds").at(fastest).get<double>();
    skew += share * ranks[r].at("skew_seconds").at(fastest).get<double>();
  }
  for (const comm::CommOp op : kCollectives)
    for (const char* of : {"calls", "bytes"})
      row.at(key_of(of, op)).measured = answer.at(of).at(std::string(name(op))).get<double>();
  const double step = seconds[fastest];
  row.rounds.push_back(step);
  const auto [least, most] = std::ranges::minmax(row.rounds);
  if (row.rounds.size() > 1) row.at("step_spread_seconds").measured = most - least;
  if (row.has_run() && step >= *row.at("step_seconds").measured) return;
  row.at("step_seconds").measured = step;
  row.at("exposed_transfer_seconds").measured = std::max(0.0, exposed - skew);
  row.at("exposed_skew_seconds").measured = skew;
  row.at("tokens_per_second").measured = tokens_of(plan) / step;
}

}  // namespace

NamelessText::NamelessText(const std::string& text) : file_(::memfd_create("sherd-walk", MFD_CLOEXEC)) {
  const bool is_written =
      file_.is_open() && ::write(file_.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size());
  check(is_written, "cannot keep {} bytes of text for the runs: {}", text.size(), std::strerror(errno));
}

std::string NamelessText::path() const { return fmt::format("/proc/{}/fd/{}", ::getpid(), file_.get()); }

std::string made_up_text(std::int64_t sequence) {
  std::minstd_rand draw(1);
  std::string text(static_cast<std::size_t>(std::max<std::int64_t>(1 << 16, 20 * (sequence + 1))), ' ');
  for (char& c : text) c = static_cast<char>('!' + draw() % 65);
  return text;
}

Timeline predict(RowPlan& plan, int ranks, std::int64_t data_vocabulary) {
  Row row = plan.row;
  GhostStep first = ghost_step(plan.config, 0, ranks, data_vocabulary);
  for (int rank = 0; rank < ranks; ++rank) {
    const PredictedPeak predicted = rank == 0
                                        ? std::move(first.memory)
                                        : predict_peak(plan.config, rank, ranks, data_vocabulary, {.evaluates = false});
    row.ranks.push_back({.predicted = {predicted.peak, predicted.at_peak, predicted.bytes}});
    for (int c = 0; c < kNumCategories; ++c)
      raise(row.at(memory_key(c)).predicted, predicted.peak[static_cast<std::size_t>(c)]);
    raise(row.at("memory_bytes.total").predicted, predicted.bytes);
    if (rank > 0) continue;
    for (const comm::CommOp op : kCollectives)
      row.at(key_of("calls", op)).predicted = row.at(key_of("bytes", op)).predicted = 0;
    for (const CommCounter::Entry& entry : predicted.issued)
      if (std::ranges::count(kCollectives, entry.kind) > 0) {
        *row.at(key_of("calls", entry.kind)).predicted += static_cast<double>(entry.item.calls);
        *row.at(key_of("bytes", entry.kind)).predicted += static_cast<double>(entry.item.bytes);
      }
  }
  if (!plan.config.plan.memory_budget.is_set()) plan.row = std::move(row);
  return std::move(first.timeline);
}

void predict_times(RowPlan& plan, const Timeline& step, const Cluster& cluster, bool has_times) {
  const Simulation simulated = simulate(step, cluster);
  plan.row.axes.clear();
  for (const Simulation::Part& axis : simulated.axes)
    plan.row.axes.push_back({axis.name, axis.fabric, axis.calls, axis.wire_bytes, axis.seconds});
  if (!has_times) return;
  const Simulation::RankTimes& rank = simulated.of(0);
  plan.row.at("step_seconds").predicted = simulated.seconds;
  plan.row.at("tokens_per_second").predicted = tokens_of(plan) / simulated.seconds;
  plan.row.at("exposed_transfer_seconds").predicted = rank.transfer + rank.throttle;
}

std::string too_large(const Row& row) {
  const auto host = static_cast<double>(::sysconf(_SC_PHYS_PAGES)) * static_cast<double>(::sysconf(_SC_PAGE_SIZE));
  double all = 0;
  for (const table::RankBytes& rank : row.ranks) all += static_cast<double>(rank.predicted.total);
  if (all <= host) return "";
  return fmt::format("its {} ranks hold {} together, and this host has {}", row.ranks.size(),
                     format_bytes(std::llround(all)), format_bytes(std::llround(host)));
}

void measure(RowPlan& plan, int ranks, int steps) {
  try {
    const NamelessText config(to_toml(plan.config));
    const std::vector<std::string> words{"train", config.path(), "--group", plan.config.group.text()};
    bench::Side side(bench::child(words, ranks), kPatience);
    fill_measured(plan, side.ask(std::to_string(steps)));
  } catch (const Error& error) {
    std::string& failure = plan.row.failure = error.message();
    // What the program says is the end of what the launcher tells of it.
    for (const std::string_view before : {"its last line on stderr: ", "sherd: "})
      if (const std::size_t at = failure.rfind(before); at != std::string::npos) failure.erase(0, at + before.size());
  }
}

}  // namespace sherd::walk
