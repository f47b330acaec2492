#include "tools/bench/training.h"

#include "nn/parallel/fully_shard.h"
#include "nn/parallel/tensor_parallel.h"
#include "runtime/autograd/autograd.h"

namespace sherd::bench {

Training::Training(const BenchModel& model, const TrainingOptions& options, std::shared_ptr<ProcessGroup> group)
    : model_(make_bench_model(model)) {
  if (options.tensor_parallel) nn::parallelize(*model_, mesh_.emplace(group, "tp"), bench_plan(model));
  else if (group->size() > 1 || options.dtype == DType::bf16) shard(options, group);
  model_->materialize(nn::Seed{1}, options.device);
  optimizer_ = std::make_unique<nn::AdamW>(model_->parameters(),
                                           nn::AdamWOptions{.lr = 3e-4, .beta2 = 0.95, .weight_decay = 0.1});
  if (options.captured)
    captured_ = std::make_unique<CompiledStep>([this](std::span<const Tensor> in) { return eager_step(in); },
                                               CompileOptions{.group = std::move(group)});
}

void Training::shard(const TrainingOptions& options, const std::shared_ptr<ProcessGroup>& group) {
  const DeviceMesh mesh(group, "dp");
  nn::FullyShardOptions units{.prefetch = options.prefetch};
  if (options.dtype == DType::bf16) units.mp_policy = {.param_dtype = DType::bf16, .reduce_dtype = DType::f32};
  for (nn::Module* block : model_->blocks()) nn::fully_shard(*block, mesh, units);
  nn::fully_shard(*model_, mesh, units);
}

std::vector<Tensor> Training::eager_step(std::span<const Tensor> in) {
  Tensor loss = (*model_)(in[0], in[1]);
  backward(loss);
  optimizer_->step_and_clear();
  return {loss.local().detach()};  // of a tensor parallel one every rank has the whole
}

Tensor Training::step(const Tensor& tokens, const Tensor& targets, bool eager) {
  const Tensor in[] = {tokens, targets};
  return (captured_ && !eager ? (*captured_)(in) : eager_step(in))[0];
}

Device device_of_flag(std::string_view text) {
  check(text == "cpu" || text == "cuda", "--device is cpu or cuda, not {}", text);
  return text == "cpu" ? Device::cpu() : Device::cuda(0);
}

DType dtype_of_flag(std::string_view text) {
  check(text == "f32" || text == "bf16", "--dtype is f32 or bf16, not {}", text);
  return text == "f32" ? DType::f32 : DType::bf16;
}

}  // namespace sherd::bench
