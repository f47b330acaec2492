#pragma once
// What the programs `sherd` and `sherd-bench` have in common: how a command's errors are printed, and how one finds the
// other.
#include <filesystem>
#include <span>
#include <string_view>

namespace sherd {

/// Calls `run` and returns its exit status, or that of an error, which is printed as a line "sherd: ..." on stderr.
int run_printing_errors(std::span<const std::string_view> args, int (*run)(std::span<const std::string_view> args));

/// Runs a program whose main() was given argc and argv: run_printing_errors() with the words after the program's name,
/// in a process that ignores file size signals and may use the CPUs that its host allows.
int run_program(int argc, char** argv, int (*run)(std::span<const std::string_view> args));

/// The path of a program in the folder of this one.
std::filesystem::path sibling_program(std::string_view name);

/// Goes on as `sherd-bench` with these words, of which the first is the command's name: one process, one set of
/// signals. Throws an Error that names the file if it cannot be started.
int exec_bench(std::span<const std::string_view> args);

}  // namespace sherd
