#pragma once
// One benchmark model in training, as all our children train it: AdamW of lr 3e-4, betas 0.9 and 0.95, weight decay
// 0.1, no clipping; the peers' loops do the same.
#include <memory>
#include <optional>

#include "compile/compile.h"
#include "dtensor/mesh.h"
#include "nn/optim/adamw.h"
#include "runtime/comm/group/process_group.h"
#include "tools/bench/models.h"

namespace sherd::bench {

struct TrainingOptions {
  DType dtype = DType::f32;  ///< bf16: by fully_shard's policy, with f32 masters and reductions, on one rank too
  Device device{};
  bool captured = true;          ///< replay a recording
  bool prefetch = true;          ///< gather the next group while one computes
  bool tensor_parallel = false;  ///< ranks share one batch and cut the model's matrices
};

class Training {
 public:
  /// Materialised from seed 1; on several ranks fully sharded, or tensor parallel.
  Training(const BenchModel& model, const TrainingOptions& options, std::shared_ptr<ProcessGroup> group);

  /// One step on i32 [B, T]. Returns the 0-d loss; does not wait for a device. `eager`: not recorded nor replayed, even
  /// if others are.
  Tensor step(const Tensor& tokens, const Tensor& targets, bool eager = false);
  /// How steps that are not told to be eager run.
  std::string how() const { return captured_ ? captured_->why() : "eager"; }

 private:
  void shard(const TrainingOptions& options, const std::shared_ptr<ProcessGroup>& group);
  std::vector<Tensor> eager_step(std::span<const Tensor> in);

  std::optional<DeviceMesh> mesh_;
  std::unique_ptr<nn::LanguageModel> model_;
  std::unique_ptr<nn::AdamW> optimizer_;
  std::unique_ptr<CompiledStep> captured_;
};

/// "cpu", or "cuda" for the first one. Error on anything else.
Device device_of_flag(std::string_view text);
/// "f32" or "bf16". Error on anything else.
DType dtype_of_flag(std::string_view text);

}  // namespace sherd::bench
