#include "dtensor/scopes.h"

namespace sherd {

namespace {

thread_local bool t_strict = false, t_implicit = false;

}  // namespace

StrictCommunication::StrictCommunication(bool on) : outer_(t_strict) { t_strict = on; }
StrictCommunication::~StrictCommunication() { t_strict = outer_; }
ImplicitReplication::ImplicitReplication(bool on) : outer_(t_implicit) { t_implicit = on; }
ImplicitReplication::~ImplicitReplication() { t_implicit = outer_; }
bool is_strict_communication() { return t_strict; }
bool is_implicit_replication() { return t_implicit; }

}  // namespace sherd
