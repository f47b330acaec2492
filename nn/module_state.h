#pragma once
// Captured steps compare this state of a module with that of their recording.
#include <cstdint>
#include <string>

#include "runtime/op/core/host_state.h"

namespace sherd::nn {

/// What a forward reads of a module beside its parameters.
struct ModuleState {
  bool training = true;
  std::string hooks = "none";  ///< at a root: those of its tree, as how many and which
  std::int64_t parts = 0;      ///< at a root: how many modules, parameters and buffers its tree was given
  static constexpr AttrField fields[] = {
      attr<&ModuleState::training>("training").seen_by(SeenBy::guard, "dropout; training() of any module"),
      attr<&ModuleState::hooks>("hooks").seen_by(SeenBy::guard, "every forward, for all modules below the root"),
      attr<&ModuleState::parts>("parts").seen_by(SeenBy::guard,
                                                 "every forward, for all modules below the root; items of a list")};
};

}  // namespace sherd::nn
