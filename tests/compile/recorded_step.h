#pragma once
// Recorded training steps of small models, on one rank and on four, which can be run again and again from the same
// state, as they are or as passes left them.
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "compile/ir/graph.h"
#include "runtime/comm/group/process_group.h"
#include "runtime/exec/price.h"
#include "runtime/memory/accounting.h"
#include "runtime/op/core/tensor.h"

namespace sherd::testing {

using namespace ir;

/// What a run leaves, in bits, and what it held at most.
struct Outcome {
  std::vector<std::vector<std::byte>> results, slots, gradients, arguments;
  CategoryBytes peaks{};
  std::int64_t peak = 0;
  CategoryBytes left{};  // held at the end
  bool same_bits_as(const Outcome& other) const {
    return results == other.results && slots == other.slots && gradients == other.gradients &&
           arguments == other.arguments;
  }
};

class RecordedStep {
 public:
  using Function = std::function<std::vector<Tensor>(std::span<const Tensor>)>;
  /// Runs the step twice, so that lazy state settles, and records the third call. Of this rank.
  RecordedStep(Function step, std::vector<Tensor> arguments, std::shared_ptr<ProcessGroup> group);

  /// As it was recorded: waits, scratch and sums are the dispatcher's.
  const Program& recorded() const { return recorded_; }
  /// As standard_passes() leave it, with all of these as nodes and values.
  const Program& complete() const { return complete_; }
  /// Collective: from the state before the recorded call. Constants that it was not recorded with get homes, by turns
  /// in a file and in memory of the host, which is filled.
  Outcome run(const Program& program) const;
  /// Collective: whether it is so on all ranks.
  bool on_all(bool here) const { return count(here) == group_->size(); }
  ProcessGroup& group() const { return *group_; }

 private:
  int count(bool here) const;
  Live live_for(const Program& program) const;
  void restore() const;
  void fill_homes() const;

  Function step_;  // holds the model
  std::vector<Tensor> arguments_;
  std::shared_ptr<ProcessGroup> group_;
  Program recorded_, complete_;
  Live live_;                                       // of both
  std::vector<std::vector<std::byte>> state_;       // by slot of the rank context
  std::vector<std::vector<std::byte>> given_bits_;  // by argument
};

/// Prices at which copies to a file and back take little beside what they save.
Prices prices_of_cheap_copies();

/// Collective: the program of the least budget that the step reaches, from this one in percent on, in steps of 5.
/// `moves_out`: by copies to a file, if it has activations that may go there.
Program planned(const RecordedStep& step, int percent, bool moves_out = false);

struct StepCase {
  const char* name;
  int ranks;
  std::function<std::unique_ptr<RecordedStep>(const std::shared_ptr<ProcessGroup>& group)> record;
};

/// The benchmark's mini (batch of 4) and bigger (2 of its 6 layers, batch of 2, 64 tokens), its tiny_llama; HSDP on
/// 2 x 2 ranks; fully_shard over tensor and sequence parallelism on 2 x 2. All clip, and all update by AdamW.
std::vector<StepCase> step_cases();

/// Steps of a small GPT by plans (nn/plan/training_plan.h), which also clip and update by AdamW: accumulated, with
/// activations in a file, both on 2 x 2 ranks of HSDP, with state in a file on 2 ranks.
std::vector<StepCase> step_cases_of_plans();

/// On 2 ranks: four blocks under fully_shard, which keep what they have gathered from forward to backward.
std::unique_ptr<RecordedStep> record_kept_units(const std::shared_ptr<ProcessGroup>& group);

/// The same, but gathered again for backward: what queues hold weighs more than activations do.
std::unique_ptr<RecordedStep> record_large_units(const std::shared_ptr<ProcessGroup>& group);

/// Calls `body` on the ranks of each case.
void for_each_step(const std::function<void(const StepCase&, const RecordedStep&)>& body);

}  // namespace sherd::testing
