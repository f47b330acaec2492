#include "tools/bench/models.h"

#include <algorithm>
#include <filesystem>
#include <vector>

#include "runtime/tensor/error.h"
#include "runtime/tensor/nearest.h"
#include "tools/bench/bench.h"
#include "tools/cli/program.h"
#include "tools/train/model_factory.h"

namespace sherd::bench {

double BenchModel::step_flops() const {
  const std::int64_t looked_up = tied_head ? 0 : vocabulary * width;
  const std::int64_t multiplied = make_bench_model(*this)->num_parameters() - looked_up;
  const auto per_token = static_cast<double>(6 * multiplied + 6 * layers * sequence * width);
  return static_cast<double>(tokens_per_step()) * per_token;
}

BenchModel bench_model(const std::string& name) {
  const std::filesystem::path installed = sibling_program("../share/sherd/configs/bench");
  const auto folder = std::filesystem::exists(installed) ? installed : source_file("../configs/bench");
  std::vector<std::string> names;
  for (const auto& file : std::filesystem::directory_iterator(folder)) names.push_back(file.path().stem());
  std::ranges::sort(names);
  check(std::ranges::find(names, name) != names.end(), "there is no benchmark model \"{}\"{}", name,
        did_you_mean(name, names));
  TrainConfig config;
  ConfigTable table = bind(config);
  load_toml_file(table, folder / (name + ".toml"));
  return {config.model, name, config.batch};
}

BenchModel sized_model(const std::string& name, bool smoke) {
  const BenchModel full = bench_model(name);
  return !smoke ? full : bench_model(full.style == "llama" ? "tiny_llama" : "tiny");
}

std::unique_ptr<nn::LanguageModel> make_bench_model(const BenchModel& m) { return make_model(m, m.vocabulary); }

}  // namespace sherd::bench
