#include "runtime/exec/left_steps.h"

#include "runtime/exec/context.h"

namespace sherd {

namespace {
struct LeftSteps {
  std::uint64_t count = 0, predictions = 0;
};
LeftSteps& left_steps() { return RankContext::current().state<LeftSteps>(); }
}  // namespace

std::uint64_t num_left_steps() { return left_steps().count; }
void count_left_step() { ++left_steps().count; }

std::uint64_t num_predictions() { return left_steps().predictions; }
void note_other_prediction() { ++left_steps().predictions; }

}  // namespace sherd
