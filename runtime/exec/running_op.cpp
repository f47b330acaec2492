#include "runtime/exec/running_op.h"

#include "runtime/exec/context.h"

namespace sherd {

namespace {
struct Keeper {
  std::shared_ptr<RunningOp> running = std::make_shared<RunningOp>();
};
}  // namespace

const std::shared_ptr<RunningOp>& running_op() { return RankContext::current().state<Keeper>().running; }

}  // namespace sherd
