#pragma once
// Groups by name. What is data (attributes, layouts, programs) says the name of a group; a rank knows which group of
// its own that is. Whoever makes groups names them: a mesh those of its axes, the job that of all ranks; a collective
// names the group that it is called with.
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/comm/group/process_group.h"

namespace sherd {

/// Makes a group known on this rank for as long as it lives, and returns what it is known by: its name(), with "~2"
/// after it if another living group has that name already, which only groups of two worlds can. Ranks that name the
/// same groups in the same order use the same names. No-op for a group that is known.
std::string name_group(const std::shared_ptr<ProcessGroup>& group);
/// The same, for what is called with a group. Error for a group that no shared_ptr holds: a lane is none.
std::string name_group(ProcessGroup& group);

/// What a group is known by on this rank. Error if it is not.
std::string name_of_group(const ProcessGroup& group);

/// This rank's group of that name. Error naming it and those that are known if there is none, or none any more.
ProcessGroup& group_named(std::string_view name);
/// The same; null if there is none.
ProcessGroup* find_group(std::string_view name);

/// The groups that are known on this rank, by name, in the order in which they were named.
std::vector<std::pair<std::string, std::shared_ptr<ProcessGroup>>> named_groups();

}  // namespace sherd
