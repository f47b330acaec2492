#pragma once
// The program's subcommands. program.cpp holds the table; each function lives in the file named after it.
#include <span>
#include <string_view>

#include "runtime/comm/job/rank.h"
#include "tools/train/exit_status.h"

namespace sherd {

using namespace train;

struct Command {
  std::string_view name, summary;
  /// Gets the words after the command's name; returns the exit status. Errors are thrown, and printed by run_program().
  /// Null where the program `sherd-bench` has the command.
  int (*run)(std::span<const std::string_view> args);
};

int run_train(std::span<const std::string_view> args);   // train.cpp
int run_sample(std::span<const std::string_view> args);  // sample.cpp
int run_eval(std::span<const std::string_view> args);    // eval.cpp
int run_export(std::span<const std::string_view> args);  // export.cpp
int run_ckpt(std::span<const std::string_view> args);    // ckpt.cpp
int run_info(std::span<const std::string_view> args);    // info.cpp

/// Error of usage where a launcher has started several ranks, each of which would write what `command` writes.
inline void check_one_rank(std::string_view command) {
  const RankInfo rank = discover_rank();
  check_usage(rank.world_size == 1, "{} runs on one rank, and {} has started {}; call it without the launcher", command,
              rank.source, rank.world_size);
}
int run_calibrate(std::span<const std::string_view> args);  // tools/calibrate

// In sherd-bench.
int run_bench(std::span<const std::string_view> args);  // bench.cpp
int run_walk(std::span<const std::string_view> args);   // walk.cpp

}  // namespace sherd
