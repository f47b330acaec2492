#include "runtime/exec/purpose.h"

namespace sherd {

namespace {
thread_local constinit Purpose current __attribute__((tls_model("initial-exec")));
}  // namespace

PurposeScope::PurposeScope(const char* function) : scope_(&current, current) {
  if (current.function.empty()) current.function = function;
}

PurposeScope::PurposeScope(const Purpose& work) : scope_(&current, work) {}

const Purpose& current_purpose() { return current; }

}  // namespace sherd
