#pragma once
// What an optimizer keeps from one step to the next: state and a count of each parameter, made at its first update, and
// the numbers that a step reads.
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "nn/optim/optimizer.h"

namespace sherd::nn {

class OptimizerSlots {
 public:
  /// Parameters that share one count.
  struct Cohort {
    Tensor count;
    std::vector<std::size_t> active, idle;  // with a gradient in this step, and without
  };

  /// `rule` is asked after construction only.
  OptimizerSlots(std::vector<Parameter*> list, double rate, UpdateRule& rule);

  const std::vector<Parameter*> parameters;
  Slot lr, step, scale;
  Parameter& parameter(std::size_t i) const { return *parameters[i]; }
  /// By kind; empty before it is made.
  const std::vector<std::unique_ptr<Slot>>& state_of(std::size_t parameter) const { return state_[parameter]; }
  std::size_t num_kinds() const { return rule_.state_kinds().size(); }
  void offload(const OffloadOptions& options);
  const OffloadedState* offloaded() const { return offloaded_.get(); }

  /// Makes the state of a parameter that has none.
  void ensure_state(std::size_t parameter);
  /// The same of one that is to be updated. Error if the rule cannot, or if its state is of what it was before.
  void make_ready(std::size_t parameter);
  /// The count of steps that have updated it.
  const Tensor& count_of(std::size_t parameter);
  /// Counts a step that updates `active`.
  std::vector<Cohort> count(const std::vector<std::size_t>& active);
  void update(std::vector<UpdatedPart> parts, const Tensor& count);

  /// Moves lr, step and scale to where parameters are updated.
  void move_scalars(Device device);

  /// Why one of parameters, state and counts is not whole; empty: all are.
  std::string torn();
  void mark_torn(std::string_view reason);
  void mark_whole();
  void abandon(std::string_view reason) noexcept;

  std::vector<OptimizerState> state();
  std::vector<OptimizerState> counts();

 private:
  void ensure_counts();
  std::vector<Cohort> cohorts_of(const std::vector<std::size_t>& active) const;
  /// Visits parameters, state and counts, also the one of all steps.
  void for_each_slot(const std::function<void(Slot&)>& visit);

  UpdateRule& rule_;
  std::vector<std::vector<std::unique_ptr<Slot>>> state_;  // [parameter][kind]
  std::vector<std::unique_ptr<Slot>> counts_;              // [parameter], null before its state is made
  std::unique_ptr<OffloadedState> offloaded_;              // null: state is in memory
  bool has_stepped_ = false;
};

}  // namespace sherd::nn
