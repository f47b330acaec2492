#pragma once
// A model and its optimizer to a folder of saves and back, in one call each; training_state.h has the parts.
//
//   nn::save("run", model, optimizer, {.step = n});
//   const std::int64_t n = nn::load("run", model, optimizer).step;  // the newest good save
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "nn/checkpoint/training_state.h"

namespace sherd::nn {

struct SaveOptions {
  std::int64_t step = 0;                            ///< updates made
  LossScaler* scaler = nullptr;                     ///< saved too
  std::map<std::string, ckpt::StateValue> state{};  ///< what else to keep
  std::string plan{};                               ///< print() of a TrainingPlan
  ckpt::Retention retention{};                      ///< which of the older saves stay
  std::shared_ptr<ProcessGroup> group = nullptr;    ///< ranks that hold the model; null: all of the job
};

/// save_checkpoint() of parameters, buffers and the optimizer's state: a folder in `dir`, committed by all ranks
/// together. Collective; blocks on the disk. Errors as there, on every rank; older saves stay then.
void save(const std::string& dir, Module& model, Optimizer& optimizer, const SaveOptions& options = {});
/// The same without an optimizer.
void save(const std::string& dir, Module& model, const SaveOptions& options = {});

/// Whether there is a committed save in `dir`, or `dir` is one; it may be damaged. Error if the folder cannot be read.
bool has_saves(const std::string& dir);

struct LoadOptions {
  LossScaler* scaler = nullptr;
  std::shared_ptr<ProcessGroup> group = nullptr;  ///< as of SaveOptions
};

/// Loads the newest save in `dir` (or the save that `dir` is) that is good on all ranks, made by any number of ranks in
/// any layout; damaged ones are passed over, which rank 0 says on stderr. The model has memory (materialize() or
/// allocate()). Returns what the save says of itself: step, state, and plan, of which
/// nn::differences(nn::parse_plan(plan), now) says what has changed. Collective. Errors as ckpt::use_newest_good() and
/// load_checkpoint(), and for tensors of the save that model and optimizer do not have.
ckpt::Manifest load(const std::string& dir, Module& model, Optimizer& optimizer, const LoadOptions& options = {});
/// The same without an optimizer, whose state in the save is left out.
ckpt::Manifest load(const std::string& dir, Module& model, const LoadOptions& options = {});

}  // namespace sherd::nn
