#include "dtensor/scopes.h"

#include "runtime/exec/context.h"

namespace sherd {

namespace {

struct Scopes {
  bool strict = false, implicit = false;
};

Scopes& scopes() { return RankContext::current().state<Scopes>(); }

}  // namespace

StrictCommunication::StrictCommunication(bool on) : outer_(scopes().strict) { scopes().strict = on; }
StrictCommunication::~StrictCommunication() { scopes().strict = outer_; }
ImplicitReplication::ImplicitReplication(bool on) : outer_(scopes().implicit) { scopes().implicit = on; }
ImplicitReplication::~ImplicitReplication() { scopes().implicit = outer_; }
bool is_strict_communication() { return scopes().strict; }
bool is_implicit_replication() { return scopes().implicit; }

}  // namespace sherd
