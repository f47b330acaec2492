#pragma once
// A captured step that is recorded once and not compared with other ranks' unless asked for, for tests that count
// calls: the second call records, the third replays.
#include <utility>

#include "compile/compile.h"

namespace sherd::testing {

template <class Fn>
auto compile_once(Fn function, CompileOptions options = {}) {
  options.compare = false;
  if (!options.group) options.group = nullptr;
  return compile(std::move(function), std::move(options));
}

}  // namespace sherd::testing
