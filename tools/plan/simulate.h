#pragma once
#include <span>
#include <string_view>

namespace sherd {

/// `sherd simulate CONFIG.toml|TIMELINE [flags]`: plays a step on all ranks, some of them slow. Opens no data and no
/// device.
int run_simulate(std::span<const std::string_view> args);

}  // namespace sherd
