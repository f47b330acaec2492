#include "tools/train/weights.h"

#include <algorithm>
#include <array>
#include <utility>
#include <variant>

#include "runtime/comm/group/agree.h"
#include "runtime/comm/job/world.h"
#include "runtime/tensor/indices.h"
#include "tools/train/model_factory.h"

namespace sherd::train {

namespace {

// Keys of [model] that a training run may choose anew.
constexpr std::array<std::string_view, 4> kOfTraining = {"model.sequence", "model.dropout", "model.init_std",
                                                         "model.scaled_residual_init"};
std::vector<std::pair<std::string, ConfigValue>> model_values(const TrainConfig::Model& section) {
  TrainConfig config;
  config.model = section;
  auto values = bind(config).values();
  std::erase_if(values, [](const auto& item) { return !item.first.starts_with("model."); });
  return values;
}

}  // namespace

Weights::Weights(const std::string& dir, ProcessGroup& group, ckpt::Verify verify) : dir_(dir) {
  bool is_checkpoint = false;
  together(group, [&] {
    is_checkpoint = !ckpt::list_saves(dir).empty();
    if (is_checkpoint) return;
    check(nn::HuggingFaceWeights::is_at(dir),
          "\"{}\" holds neither a checkpoint (manifest.json, or a folder step-... with one) nor config.json, as a "
          "Hugging Face model does",
          dir);
    huggingface_.emplace(dir);
    model_ = model_section(huggingface_->config());
  });
  if (!is_checkpoint) return;
  checkpoint_ = ckpt::open_newest_good(dir, group, verify, say_on_stderr);
  const ckpt::Manifest& manifest = checkpoint_->manifest();
  const TrainConfig saved = train_config_from_toml(manifest.config, dir);
  if (!manifest.vocabulary.empty()) vocabulary_ = Vocabulary::from_text(manifest.vocabulary);
  model_ = saved.model;
  if (model_.vocabulary == 0 && vocabulary_) model_.vocabulary = vocabulary_->size();
  if (model_.positions == 0) model_.positions = model_.sequence;
  together(group, [&] { check_parameters(*checkpoint_, config()); });
}

nn::LanguageModelConfig Weights::config() const { return model_config(model_, 0); }

void Weights::load(nn::LanguageModel& model) const {
  if (huggingface_) huggingface_->load(model);
  else nn::load_checkpoint(*checkpoint_, nn::training_state(model));
}

std::unique_ptr<nn::LanguageModel> Weights::make_loaded(Device device) const {
  auto model = nn::make_language_model(config());
  model->allocate(device);
  load(*model);
  return model;
}

void Weights::check_fits(const TrainConfig::Model& section) const {
  const auto wanted = model_values(section), found = model_values(model_);
  for (const std::size_t i : indices(wanted)) {
    const auto& [key, value] = wanted[i];
    if (std::ranges::count(kOfTraining, key) > 0 || value == found[i].second) continue;
    if ((key == "model.vocabulary" || key == "model.positions") && value == ConfigValue(std::int64_t{0}))
      continue;  // it follows from the data; the shapes decide
    fail("{} = {}, but the weights in {} are of a model with {}; leave the key out to take theirs", key,
         to_string(value), dir_, to_string(found[i].second));
  }
}

void check_parameters(const ckpt::CheckpointReader& checkpoint, const nn::LanguageModelConfig& config) {
  const auto layers = std::visit([](const auto& c) { return c.layers; }, config);
  check(std::cmp_less_equal(layers, checkpoint.manifest().pieces.size()),
        "the checkpoint \"{}\" says that its model has {} layers, but holds {} tensors only", checkpoint.dir(), layers,
        checkpoint.manifest().pieces.size());
  const auto model = nn::make_language_model(config);
  for (const auto& [name, p] : model->named_parameters())
    checkpoint.check_box("param", name, p->value().dtype(), p->shape(), ckpt::whole_box(p->shape()));
}

void take_model(const Weights& weights, ConfigTable& table) {
  for (const auto& [key, value] : model_values(weights.model()))
    if (!table.is_given(key)) table.set(key, value, weights.dir());
}

}  // namespace sherd::train
