#pragma once
// What of a plan goes together, and with the facts of a job. Every rule is one function of check.cpp, with its message.
#include <cstdint>

#include "nn/plan/training_plan.h"

namespace sherd::nn {

/// What a plan is carried out on.
struct PlanFacts {
  int ranks = 1;
  std::int64_t batch = 0;         ///< sequences of a step over all ranks; 0: not known
  std::int64_t memory_limit = 0;  ///< bytes of tensors of a rank; 0: none
};

/// Throws Error naming both fields, their values and the remedy, for fields that contradict each other.
void check_plan(const TrainingPlan& plan);
/// As well: the mesh is for other ranks; the strategy needs an axis that replicates; several ranks would train models
/// of their own; the batch does not divide into micro-batches of the ranks with data of their own.
void check_plan(const TrainingPlan& plan, const PlanFacts& facts);
/// For a training that goes on with the replicas that are left when ranks are lost: without any, with state divided
/// among them, on a device, or with what is offloaded it cannot.
void check_survives(const TrainingPlan& plan, int ranks);

/// What the plan asks of each of `data_ranks` ranks with data of their own: micro_batches are its leaves, if numerics
/// are layout_free. To be looked at, and not checked again. Error unless leaves divide among them.
TrainingPlan on_ranks(TrainingPlan plan, std::int64_t data_ranks);
/// Whether a batch divides into micro-batches, or leaves, of `data_ranks` ranks.
bool divides(const TrainingPlan& plan, std::int64_t batch, std::int64_t data_ranks);
/// Sequences of a rank in a step. Error if the batch does not divide into micro-batches, or leaves, of `data_ranks`
/// ranks.
std::int64_t local_batch(const TrainingPlan& plan, std::int64_t batch, std::int64_t data_ranks);

}  // namespace sherd::nn
