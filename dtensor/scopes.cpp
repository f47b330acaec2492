#include "dtensor/scopes.h"

#include "dtensor/modes.h"
#include "runtime/exec/context.h"

namespace sherd {

namespace {

struct RankModes {
  HostState<DistributedModes> state{[](const void*) { return std::string("distributed rows"); }, this};
};

HostState<DistributedModes>& modes() { return RankContext::current().state<RankModes>().state; }
const MadeOnAsking modes_of_rank([] { modes(); });

}  // namespace

StrictCommunication::StrictCommunication(bool on) : outer_(modes().all().strict) {
  modes().set<&DistributedModes::strict>(on);
}
StrictCommunication::~StrictCommunication() { modes().set<&DistributedModes::strict>(outer_); }
ImplicitReplication::ImplicitReplication(bool on) : outer_(modes().all().implicit) {
  modes().set<&DistributedModes::implicit>(on);
}
ImplicitReplication::~ImplicitReplication() { modes().set<&DistributedModes::implicit>(outer_); }

const HostState<DistributedModes>& distributed_modes() { return modes(); }
bool is_strict_communication() { return modes().get<&DistributedModes::strict>(); }
bool is_implicit_replication() { return modes().get<&DistributedModes::implicit>(); }

}  // namespace sherd
