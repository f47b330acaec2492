#pragma once
#include <span>
#include <string_view>

namespace sherd {

/// `sherd plan CONFIG.toml [flags]`: chooses a strategy without a run. Opens no data and no device.
int run_plan(std::span<const std::string_view> args);

}  // namespace sherd
