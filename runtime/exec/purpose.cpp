#include "runtime/exec/purpose.h"

namespace sherd {

namespace {
thread_local constinit Purpose current __attribute__((tls_model("initial-exec")));
}  // namespace

PurposeScope::PurposeScope(const char* function) : outer_(current) {
  if (current.function.empty()) current.function = function;
}

PurposeScope::PurposeScope(const Purpose& work) : outer_(current) { current = work; }

PurposeScope::~PurposeScope() { current = outer_; }

const Purpose& current_purpose() { return current; }

}  // namespace sherd
