#pragma once
#include <span>
#include <string_view>

namespace sherd {

/// `sherd diagnose RUN.jsonl [flags]`: what the steps of a run are made of, and what makes them longer than they had to
/// be. Trains nothing; what it simulates runs on a ghost.
int run_diagnose(std::span<const std::string_view> args);

}  // namespace sherd
