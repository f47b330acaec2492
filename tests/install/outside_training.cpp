// A training run by the installed library sherd::train: a text, a config made in code, and a run that goes on from what
// the first one has saved. Usage: outside_training FOLDER
#include <cmath>
#include <filesystem>
#include <fstream>

#include <sherd/train.h>

using namespace sherd;

static train::TrainConfig tiny_run(const std::string& folder, std::int64_t steps) {
  train::TrainConfig config;
  config.data = folder + "/text.txt";
  config.save = folder + "/saves";
  config.vocabulary = "chars";
  config.steps = steps;
  config.batch = 8;
  config.plan.compiled = true;
  config.model = {.layers = 1, .heads = 2, .width = 16, .sequence = 16};
  config.optimizer = {.lr = 1e-2, .min_lr = 1e-3, .warmup = 2, .decay_steps = 60};
  return config;
}

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  const std::string folder = argv[1];
  std::filesystem::create_directories(folder);
  std::ofstream text(folder + "/text.txt");
  for (int line = 0; line < 100; ++line) text << "the quick brown fox jumps over a lazy dog;\n";
  text.close();

  bool finite = true;
  const auto look = [&](const train::StepMetrics& step) {
    finite = finite && std::isfinite(step.loss + step.grad_norm);
  };
  double first = 0;
  {
    train::Trainer trainer(tiny_run(folder, 30), make_single_group());
    first = trainer.run(look).first_loss;
  }
  train::TrainConfig rest = tiny_run(folder, 60);
  rest.resume = rest.save;
  train::Trainer trainer(rest, make_single_group());
  const train::TrainSummary summary = trainer.run(look);
  fmt::print("loss {:.3f} -> {:.3f}, validation {:.3f}\n", first, summary.last_losses_mean, summary.val_loss.value());
  return finite && trainer.first_step() == 30 && summary.steps == 60 && summary.last_losses_mean < 0.7 * first ? 0 : 1;
}
