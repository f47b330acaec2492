// `--child train CONFIG.toml [flags]`: a training run as `sherd train` makes it, told apart by rank. A request is a
// number of steps; settling ones come before the first answer. The answer holds seconds of each step, as rank 0 sees
// them; calls and bytes of each kind of collective in the last step; the last loss; and of each rank, in `ranks`,
// exposed_seconds and skew_seconds of each step, and bytes of the accounting: peak_bytes of each category over all
// steps so far, total_peak_bytes since the program's start and bytes_at_peak then, held_bytes between steps.
#include <algorithm>
#include <chrono>
#include <cstdlib>

#include "runtime/comm/board/exposed.h"
#include "runtime/comm/group/agree.h"
#include "runtime/comm/job/world.h"
#include "runtime/cpu/parallel.h"
#include "runtime/exec/context.h"
#include "runtime/op/rows/ops.h"
#include "tools/bench/child.h"
#include "tools/table/table.h"
#include "tools/train/trainer.h"

namespace sherd::bench {

namespace {

constexpr int kSettling = 4;  // orders are recorded, then a captured step, then pools and caches fill

constexpr comm::CommOp kCollectives[] = {comm::CommOp::all_gather, comm::CommOp::reduce_scatter,
                                         comm::CommOp::all_reduce, comm::CommOp::all_to_all};

class ChildRun {
 public:
  ChildRun(const TrainConfig& config, std::shared_ptr<ProcessGroup> group)
      : group_(std::move(group)), trainer_(config, group_), memory_(RankContext::current().allocator().accounting()) {
    note_peak();
    for (int i = 0; i < kSettling; ++i) step();
  }

  nlohmann::json answer(const std::string& request) {
    const int steps = std::atoi(request.c_str());
    check(steps >= 1, "train: \"{}\" is no number of steps", request);
    std::vector<double> seconds, exposed, skew;
    nlohmann::json calls, bytes;
    for (int i = 0; i < steps; ++i) {
      group_->host().barrier();
      const CommTimes times_before = comm_times(*group_);
      const CommCounts before = counts_with_subgroups(*group_);
      const auto start = std::chrono::steady_clock::now();
      step();
      seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
      const CommTimes times = comm_times(*group_) - times_before;
      exposed.push_back(times.exposed);
      skew.push_back(times.skew);
      CommCounts moved = counts_with_subgroups(*group_);
      moved -= before;
      for (const comm::CommOp op : kCollectives) {
        calls[std::string(name(op))] = moved.of(op).calls;
        bytes[std::string(name(op))] = moved.of(op).bytes;
      }
    }
    const nlohmann::json own = {{"exposed_seconds", exposed},
                                {"skew_seconds", skew},
                                {"peak_bytes", table::by_category(peak_)},
                                {"total_peak_bytes", total_peak_},
                                {"bytes_at_peak", table::by_category(at_peak_)},
                                {"held_bytes", table::by_category(memory_.current())}};
    nlohmann::json ranks;
    for (const std::string& text : gather_text(*group_, own.dump())) ranks.push_back(nlohmann::json::parse(text));
    return {{"seconds", seconds}, {"calls", calls}, {"bytes", bytes}, {"loss", loss_}, {"ranks", ranks}};
  }

 private:
  void step() {
    memory_.reset_peaks();
    loss_ = trainer_.train_step(next_++).loss.item<double>();
    for (std::size_t c = 0; c < kNumCategories; ++c) peak_[c] = std::max(peak_[c], memory_.peak()[c]);
    note_peak();
  }
  void note_peak() {
    if (memory_.total_peak() <= total_peak_) return;
    total_peak_ = memory_.total_peak();
    at_peak_ = memory_.at_peak();
  }

  std::shared_ptr<ProcessGroup> group_;
  Trainer trainer_;
  Accounting& memory_;
  CategoryBytes peak_{}, at_peak_{};
  std::int64_t total_peak_ = 0, next_ = 0;
  double loss_ = 0;
};

}  // namespace

int run_train_child(std::span<const std::string_view> args) {
  std::optional<TrainConfig> config = load_train_config(args);
  check(config.has_value(), "train: a child has no help");
  const std::shared_ptr<ProcessGroup> group = world_group();
  if (config->threads == 0) {
    if (group->size() > 1) pin_to_cpu(group->rank());
    config->threads = 1;
  }
  ChildRun run(*config, group);
  serve_ranks(*group, {{"peer", "sherd"}}, [&](const std::string& request) { return run.answer(request); });
  return 0;
}

}  // namespace sherd::bench
