#pragma once
// Between a program, which is data, and a rank that runs it.
//
//   Recorder -> Graph --lower()--> Program --text()--> ... --parse()--> Program --bind()--> Graph -> Interpreter
#include <vector>

#include "compile/ir/graph.h"

namespace sherd {

/// Where bind() looks; what is not given is looked up on this rank.
struct Names {
  /// Instead of all slots of this rank, in the order in which they were made.
  std::vector<Slot*> slots{};
  /// Storages among which constants that are too large for a program are found by their contents, each for one.
  std::vector<Ref<Storage>> constants{};
  /// By index of the program's table, for who knows: meshes that look alike have layouts that are called alike.
  std::vector<LayoutRef> layouts{};
};

/// The graph's program, complete: with the contents of its constants, as they are now. Waits for devices that hold
/// some; on a ghost rank contents stay unknown.
ir::Program lower(const ir::Graph& graph);

/// What the program's names stand for on this rank: its slots and interned module paths, storages of units and settings
/// (step_names.h), layouts of meshes that are there; constants that the program carries are made anew. Layouts of units
/// stay the program's: this rank must have the shard that they say it has. Error naming what is missing, or what has a
/// name that several have; or if the program is not sound (verify.h). Whether slots hold what the program expects is
/// for the guards to say (guard.h).
ir::Graph bind(ir::Program program, const Names& names = {});

/// Error unless the graph's program, lowered, is what its text reads back as, and binds here to what the graph holds.
/// Steps that use a unit or a setting without a name cannot be bound: only their text is read.
void check_round_trip(const ir::Graph& graph);

}  // namespace sherd
