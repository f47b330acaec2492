// `sherd train CONFIG.toml [flags]`: ranks as processes of a launcher, or as threads of rank 0's process.
#include <algorithm>
#include <cstdio>
#include <exception>
#include <thread>

#include <unistd.h>

#include "runtime/comm/rank.h"
#include "runtime/comm/thread_group.h"
#include "runtime/comm/world.h"
#include "runtime/exec/context.h"
#include "tools/command.h"
#include "tools/progress.h"
#include "tools/train_report.h"

namespace sherd {

namespace {

void print(std::FILE* out, const std::string& text) {
  std::fputs(text.c_str(), out);
  std::fflush(out);
}

void train_as_rank_zero(Trainer& trainer, const TrainConfig& config) {
  std::optional<MetricsFile> file;
  if (!config.metrics.empty()) {
    file.emplace(config.metrics, header_line(config, trainer.group().size()), trainer.first_step());
  }
  print(stderr,
        fmt::format("{} parameters, {} training and {} validation tokens, {} rank{}\n",
                    trainer.model().num_parameters(), trainer.data().num_train(), trainer.data().num_validation(),
                    trainer.group().size(), trainer.group().size() == 1 ? "" : "s"));
  TrainSummary summary;
  {
    Progress progress(stderr, ::isatty(STDERR_FILENO) != 0);
    summary = trainer.run([&](const StepMetrics& m) {
      if (file) file->write(step_line(m));
      std::int64_t memory = 0;
      for (std::int64_t bytes : m.memory_bytes) memory += bytes;
      progress.show({m.step, config.steps, m.loss, m.tokens_per_second, memory}, Progress::Clock::now());
      if (m.val_loss) progress.message(fmt::format("step {}  validation loss {:.4f}", m.step, *m.val_loss));
    });
  }
  print(stdout, train_report(trainer, config, summary));
}

void train_rank(const TrainConfig& config, const std::shared_ptr<ProcessGroup>& group) {
  set_world_group(group);
  try {
    Trainer trainer(config, group);
    if (group->rank() == 0) {
      train_as_rank_zero(trainer, config);
    } else {
      const TrainSummary summary = trainer.run([](const StepMetrics&) {});
      train_report(trainer, config, summary);
    }
  } catch (const std::exception& error) {
    group->abort(error.what());  // peers stop waiting at once and quote the reason
    throw;
  }
}

// One of the ranks' errors: the first that is not only a consequence of another rank's.
void rethrow_first(const std::vector<std::exception_ptr>& errors) {
  std::exception_ptr consequence;
  for (const std::exception_ptr& error : errors) {
    if (!error) continue;
    try {
      std::rethrow_exception(error);
    } catch (const CommError&) {
      if (!consequence) consequence = error;
    }
  }
  if (consequence) std::rethrow_exception(consequence);
}

void train_threads(const TrainConfig& config, int ranks) {
  auto groups = make_thread_groups(ranks);
  std::vector<std::exception_ptr> errors(groups.size());
  std::vector<std::thread> threads;
  for (std::size_t r = 0; r < groups.size(); ++r)
    threads.emplace_back([&config, &errors, r, group = std::move(groups[r])] {
      RankScope scope;
      try {
        train_rank(config, group);
      } catch (...) { errors[r] = std::current_exception(); }
    });
  for (std::thread& thread : threads) thread.join();
  rethrow_first(errors);
}

}  // namespace

int run_train(std::span<const std::string_view> args) {
  std::optional<TrainConfig> config = load_train_config(args);
  if (!config) {
    print(stdout, train_help());
    return 0;
  }
  const RankInfo rank = discover_rank();
  if (config->threads == 0) {  // share this host's cores among its ranks
    const int cores = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
    config->threads = std::max(1, cores / std::max(1, rank.local_world_size));
  }
  if (config->group == "thread") {
    if (rank.rank == 0) train_threads(*config, rank.world_size);  // the other processes have nothing to do
    return 0;
  }
  train_rank(*config, world_group());
  return 0;
}

}  // namespace sherd
