// loss.*, gpu.loss.*: does training go where PyTorch's goes? Both start from the same weights and see the same batches
// (step_works.cpp writes them to a file); the figure is how far the losses of all steps lie apart, on average and as a
// share. Of f32 that is rounding. Of bf16 the limit is what bf16 does to PyTorch itself: how far its bf16 losses lie
// from its own f32 ones; two that are both that good lie at most twice as far from each other. loss.mini.f16 asks our
// side alone: f16 with a loss scale must end where bf16 does.
#include <cmath>
#include <filesystem>
#include <numeric>

#include <fmt/format.h>

#include "runtime/tensor/error.h"
#include "runtime/tensor/indices.h"
#include "runtime/tensor/no_copy.h"
#include "tools/bench/bench.h"
#include "tools/bench/child.h"
#include "tools/bench/models.h"

namespace sherd::bench {

namespace {

struct LossCase {
  const char *figure, *model, *dtype, *device;
  int steps;
  Target target;
};
constexpr double kMillion = 1e6;
constexpr int kF16Steps = 300, kF16LastSteps = 20;
// Steps of llama1b take PyTorch some 3 s in f32.
const LossCase kCases[] = {
    {"loss.mini.f32", "mini", "f32", "cpu", 100, at_most(100)},
    {"loss.llama.f32", "tiny_llama", "f32", "cpu", 100, at_most(100)},
    {"gpu.loss.gpt124m", "gpt124m", "bf16", "cuda", 100, limit_factor_at_most(2)},
    {"gpu.loss.llama1b", "llama1b", "bf16", "cuda", 50, limit_factor_at_most(2)},
};

// Where both sides find the start; a large model's has gigabytes.
class Folder : NoCopy {
 public:
  Folder() {
    path_ = (std::filesystem::temp_directory_path() / "sherd-loss-XXXXXX").string();
    check(::mkdtemp(path_.data()) != nullptr, "cannot make a folder like {}", path_);
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// One side alone, so that the device's memory is its own.
Answers answers_of(const Contestant& contestant) { return hold({.ours = contestant, .rounds = 1}).ours; }

std::vector<double> losses_of(const Answers& side, int steps) {
  const auto losses = side.answers.at(0).at("losses").get<std::vector<double>>();
  check(losses.size() == static_cast<std::size_t>(steps), "{} answered {} losses, not {}", side.name, losses.size(),
        steps);
  for (const double loss : losses) check(std::isfinite(loss), "{} has a loss of {}", side.name, loss);
  return losses;
}

struct Distance {
  double mean = 0, largest = 0;  ///< |a - b| / |b|
};
Distance distance(const std::vector<double>& a, const std::vector<double>& b) {
  Distance d;
  for (const std::size_t i : indices(a)) {
    const double apart = std::abs(a[i] - b[i]) / std::abs(b[i]);
    d.mean += apart / static_cast<double>(a.size());
    d.largest = std::max(d.largest, apart);
  }
  return d;
}

std::string model_of(const LossCase& c, const BenchRun& run) { return sized_model(c.model, run.smoke()).name; }

Contestant ours(const LossCase& c, const char* dtype, const Folder& folder, const BenchRun& run) {
  return {child({"loss", "--model", model_of(c, run), "--dtype", dtype, "--device", c.device, "--steps",
                 std::to_string(run.smoke() ? 4 : c.steps), "--folder", folder.path()}),
          "all"};
}

Contestant peer(const LossCase& c, const char* dtype, const Folder& folder, BenchRun& run) {
  if (const auto other = run.other_build(ours(c, dtype, folder, run))) return *other;
  const std::vector<std::string> words = {"loss.py", model_of(c, run), dtype, folder.path()};
  const auto torches = run.torch_contestants(words, "all", std::string_view(c.device) == "cpu" ? 1 : 0);
  check(!torches.empty(), "there is nothing to compare with: name a Python that has torch by --python");
  return torches.front();
}

void measure(Figure& figure, const LossCase& c, BenchRun& run) {
  const Folder folder;
  const int steps = run.smoke() ? 4 : c.steps;
  const Answers sherd = answers_of(ours(c, c.dtype, folder, run));
  const std::vector<double> losses = losses_of(sherd, steps);
  const Answers other = answers_of(peer(c, c.dtype, folder, run));
  const std::vector<double> theirs = losses_of(other, steps);
  const Distance apart = distance(losses, theirs);
  figure.value = apart.mean * kMillion;
  figure.device = sherd.device;
  if (c.target.rule == Rule::limit_factor_at_most)
    figure.limit = distance(theirs, losses_of(answers_of(peer(c, "f32", folder, run)), steps)).mean * kMillion;
  figure.detail["largest"] = apart.largest * kMillion;
  figure.detail["steps"] = steps;
  figure.detail["losses"] = {losses.front(), losses.back()};
  figure.detail["peer_losses"] = {theirs.front(), theirs.back()};
  add_note(figure, fmt::format("{} {}", other.name, other.settings));
}

// From the same start on the same batches; the other build, if there is one, in the place of bf16.
void measure_f16(Figure& figure, const Outcome&, BenchRun& run) {
  const Folder folder;
  const int steps = run.smoke() ? 4 : kF16Steps, last = run.smoke() ? 2 : kF16LastSteps;
  const auto end_of = [&](const Contestant& side) {
    const std::vector<double> losses = losses_of(answers_of(side), steps);
    return std::accumulate(losses.end() - last, losses.end(), 0.0) / last;
  };
  const LossCase c{"", "mini", "f16", "cpu", kF16Steps, {}};
  const auto other = run.other_build(ours(c, "f16", folder, run));
  const double f16 = end_of(ours(c, "f16", folder, run)), bf16 = end_of(other ? *other : ours(c, "bf16", folder, run));
  figure.value = std::abs(f16 - bf16);
  figure.detail["steps"] = steps;
  figure.detail["losses"] = {f16, bf16};
}

}  // namespace

std::vector<Benchmark> loss_benchmarks(bool) {
  std::vector<Benchmark> rows;
  for (const LossCase& c : kCases)
    rows.push_back({.name = c.figure,
                    .summary = fmt::format(
                        "{} steps of {} in {}: mean distance of the losses from PyTorch's{}", c.steps, c.model, c.dtype,
                        c.target.rule == Rule::limit_factor_at_most ? "; limit: its bf16 from its f32" : ""),
                    .unit = lower("ppm"),
                    .target = c.target,
                    .more = [&c](Figure& figure, const Outcome&, BenchRun& run) { measure(figure, c, run); }});
  rows.push_back(
      {.name = "loss.mini.f16",
       .summary = fmt::format("{} steps of mini in f16 with a loss scale: distance of the mean of the last {} "
                              "losses from that in bf16",
                              kF16Steps, kF16LastSteps),
       .unit = lower("nats", 4),
       .target = at_most(0.02),
       .more = measure_f16});
  return rows;
}

}  // namespace sherd::bench
