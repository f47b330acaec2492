#pragma once
// The groups of the host that the table is run on; groups of devices are in tests/cuda.
#include <functional>
#include <string>
#include <vector>

#include "runtime/comm/group/composed_group.h"

namespace sherd::testing {

/// What a rank does with the group, in a rank context; buffers lie on `device`.
using EngineBody = std::function<void(ProcessGroup& group, Device device)>;

struct Engine {
  std::string name;
  std::vector<int> worlds{1, 2, 3, 4};
  /// Runs the body on `count` ranks; element r is what rank r threw, empty if nothing. A rank that throws aborts
  /// the group first.
  std::function<std::vector<std::string>(int count, const EngineBody& body)> run;
};

/// Over a store, to which each rank, a thread, has connections of its own.
Engine store_engine();
/// Threads; processes; processes with windows so small that calls take many rounds; composed in order; over a store.
std::vector<Engine> host_engines();
/// Over a bare group of threads.
Engine composed_engine(SumsBy sums);

}  // namespace sherd::testing
