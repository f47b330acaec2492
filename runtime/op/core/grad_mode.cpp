#include "runtime/op/core/grad_mode.h"

#include "runtime/exec/context.h"

namespace sherd {

GradMode::GradMode(bool enabled) : scope_(&RankContext::current().grad_enabled, enabled) {}

}  // namespace sherd
