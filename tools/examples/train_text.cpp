// A training run from code, by the library sherd::train: the loop of `sherd train`, with the config made here. It
// trains a small Llama on the bytes of a text, saves it, and goes on from what it has saved when it is called again.
//   build/release/bin/train_text input.txt checkpoint 200
//   sherd run -n 2 -- build/release/bin/train_text input.txt checkpoint 200
// With `--numerics layout_free` at the end the hash that it prints is one on 1, 2, 4 and 8 ranks (docs/numerics.md).
#include <cstdlib>
#include <string_view>

#include <sherd/sherd.h>

#include <sherd/train.h>

using namespace sherd;

int main(int argc, char** argv) {
  const bool has_numerics = argc == 6 && std::string_view(argv[4]) == "--numerics";
  if (argc != 4 && !has_numerics) {
    fmt::print(stderr, "usage: train_text TEXT FOLDER STEPS [--numerics default|layout_free]\n");
    return 2;
  }
  train::TrainConfig config;
  config.data = argv[1];
  config.save = argv[2];
  config.steps = std::atoll(argv[3]);
  config.plan.compiled = true;  // record one step and replay it
  if (has_numerics) config.plan.numerics = std::string_view(argv[5]);
  config.model = {.style = "llama", .layers = 2, .heads = 4, .width = 64, .sequence = 64};
  config.optimizer = {.lr = 3e-3, .min_lr = 3e-4, .warmup = 10, .decay_steps = 400};
  if (nn::has_saves(config.save)) config.resume = config.save;

  train::Trainer trainer(config, world_group());
  const bool speaks = trainer.group().rank() == 0;
  const train::TrainSummary summary = trainer.run([&](const train::StepMetrics& step) {
    if (speaks && step.step % 20 == 0) fmt::print("step {}  loss {:.4f}\n", step.step, step.loss);
  });
  if (speaks && summary.val_loss) fmt::print("after {} steps: validation {:.4f}\n", summary.steps, *summary.val_loss);
  if (speaks && !summary.state_hash.empty()) fmt::print("hash {}\n", summary.state_hash);
}
