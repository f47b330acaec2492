// `sherd sample DIR [--prompt TEXT] [--tokens N] [--temperature X] [--seed N]`: text from a checkpoint, on one rank.
#include <algorithm>
#include <cmath>
#include <cstdio>

#include "nn/data/vocabulary.h"
#include "runtime/autograd/autograd.h"
#include "runtime/op/rows/ops.h"
#include "runtime/tensor/indices.h"
#include "tools/cli/command.h"
#include "tools/train/exit_status.h"
#include "tools/train/flags.h"
#include "tools/train/weights.h"

namespace sherd {

namespace {

struct SampleOptions {
  std::string prompt;
  std::int64_t tokens = 200;
  double temperature = 0.8;
  std::int64_t seed = 1;
  Device device = Device::cpu();
};

// Index drawn from softmax(logits / temperature) by one uniform number; the largest for temperature 0.
std::int32_t draw(const std::vector<double>& logits, double temperature, double uniform) {
  const auto largest = std::max_element(logits.begin(), logits.end());
  if (temperature == 0) return static_cast<std::int32_t>(largest - logits.begin());
  std::vector<double> weights;
  double total = 0;
  for (double logit : logits) total += weights.emplace_back(std::exp((logit - *largest) / temperature));
  double left = uniform * total;
  for (const std::size_t i : indices(weights))
    if ((left -= weights[i]) < 0) return static_cast<std::int32_t>(i);
  return static_cast<std::int32_t>(weights.size()) - 1;
}

void generate(nn::LanguageModel& model, const Vocabulary& vocabulary, const SampleOptions& options, Device device) {
  std::vector<std::int32_t> tokens = vocabulary.encode(options.prompt);
  if (tokens.empty()) tokens.push_back(std::max(vocabulary.token('\n'), 0));  // a neutral start, not printed
  else std::fputs(options.prompt.c_str(), stdout);
  for (const std::int64_t i : up_to(options.tokens)) {
    const auto length = std::min<std::int64_t>(static_cast<std::int64_t>(tokens.size()), model.max_tokens());
    const std::span<const std::int32_t> window(tokens.data() + tokens.size() - static_cast<std::size_t>(length),
                                               static_cast<std::size_t>(length));
    const Tensor logits = model(to(Tensor::from(window, {1, length}), device), Tensor());  // [1, T, V]
    // A model may know more tokens than the vocabulary has.
    const Tensor last = narrow(select(select(logits, 0, 0), 0, length - 1), 0, 0, vocabulary.size());
    const std::uint64_t key = random_key(static_cast<std::uint64_t>(options.seed), "sample", "token");
    const double uniform = random_uniform({1}, key, 0, 1, i).item<double>();
    tokens.push_back(draw(last.to_vector<double>(), options.temperature, uniform));
    std::fputs(vocabulary.decode({&tokens.back(), 1}).c_str(), stdout);
    std::fflush(stdout);
  }
  std::fputs("\n", stdout);
}

}  // namespace

int run_sample(std::span<const std::string_view> args) {
  SampleOptions options;
  ConfigTable table;
  table.add("prompt", &options.prompt, "text to continue");
  table.add("tokens", &options.tokens, "tokens to generate");
  table.add("temperature", &options.temperature, "0 takes the most likely token");
  table.add("seed", &options.seed, "seed of the draws");
  table.add("device", text_field(options.device), kDeviceHelp);
  const auto words = read_command_line(table, args, "sherd sample DIR [flags]: generates text from a checkpoint");
  if (!words) return 0;
  check_usage(words->size() == 1, "sherd sample takes one checkpoint folder, got {} words", words->size());
  check_usage(options.tokens >= 0, "--tokens must not be negative, got {}", options.tokens);
  check_usage(options.temperature >= 0, "--temperature must not be negative, got {}", options.temperature);

  const Device device = open_device(options.device, *make_single_group());
  const Weights weights(words->front());
  check(
      weights.vocabulary().has_value(),
      "\"{}\" is, or was made from, a Hugging Face directory: what text its tokens stand for is not known here; sample "
      "a save of sherd train on text, or pass tokens to sherd eval",
      words->front());
  GradMode off(false);
  const auto model = weights.make_loaded(device);
  model->train(false);
  generate(*model, *weights.vocabulary(), options, device);
  return 0;
}

}  // namespace sherd
