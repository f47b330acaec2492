#include "runtime/op/core/grad_mode.h"

#include "runtime/exec/context.h"

namespace sherd {

GradMode::GradMode(bool enabled) : outer_(RankContext::current().grad_enabled) {
  RankContext::current().grad_enabled = enabled;
}
GradMode::~GradMode() { RankContext::current().grad_enabled = outer_; }

}  // namespace sherd
