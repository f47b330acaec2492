#pragma once
// Our side of a comparison: `sherd bench --child NAME FLAGS` in a process of its own, so that its memory and threads
// are those of a fresh program. It speaks the protocol of side.h.
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "runtime/comm/group/process_group.h"
#include "tools/bench/side.h"

namespace sherd::bench {

/// Prints the greeting, then answers each line of stdin until its end. An Error becomes the answer {"error": text}.
void serve(const nlohmann::json& greeting, const std::function<nlohmann::json(const std::string& request)>& answer);

/// The same on all ranks: rank 0 reads, every rank answers, rank 0 prints its answer.
void serve_ranks(ProcessGroup& group, const nlohmann::json& greeting,
                 const std::function<nlohmann::json(const std::string& request)>& answer);

/// Runs a child; the words after --child. Returns the exit status.
int run_child(std::span<const std::string_view> args);

/// This program as a side: one process, or so many ranks under `sherd run`.
SideCommand child(std::string_view name, std::vector<std::string> flags, int ranks = 1);

/// Pins the calling thread, and those it starts later, to one CPU of those it may use: the one of its rank.
void pin_to_cpu(int rank);

/// "VmRSS" or "VmHWM" of /proc/self/status, in bytes.
std::int64_t process_memory_bytes(std::string_view field);

// The children; each file says what it answers to.
int run_step_child(std::span<const std::string_view> args);         // step_child.cpp
int run_gemm_child(std::span<const std::string_view> args);         // gemm_child.cpp
int run_dispatch_child(std::span<const std::string_view> args);     // dispatch_child.cpp
int run_dtensor_child(std::span<const std::string_view> args);      // dtensor_child.cpp
int run_collectives_child(std::span<const std::string_view> args);  // collectives_child.cpp
int run_fma_child(std::span<const std::string_view> args);          // fma_child.cpp
int run_units_child(std::span<const std::string_view> args);        // units_child.cpp
int run_guards_child(std::span<const std::string_view> args);       // guards_child.cpp
int run_train_child(std::span<const std::string_view> args);        // train_child.cpp
int run_ghost_child(std::span<const std::string_view> args);        // ghost_child.cpp
int run_offload_child(std::span<const std::string_view> args);      // offload_child.cpp
int run_save_child(std::span<const std::string_view> args);         // save_child.cpp
int run_loss_child(std::span<const std::string_view> args);         // loss_child.cpp
int run_program_child(std::span<const std::string_view> args);      // program_child.cpp
int run_gpu_op_child(std::span<const std::string_view> args);       // gpu_op_child.cpp
int run_gpu_probe_child(std::span<const std::string_view> args);    // gpu_probe_child.cpp

}  // namespace sherd::bench
