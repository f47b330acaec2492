#include "tools/metrics.h"

#include <cerrno>
#include <cstring>
#include <utility>
#include <variant>

#include <nlohmann/json.hpp>

#include "runtime/tensor/error.h"
#include "tools/command.h"

namespace sherd {

namespace {

using nlohmann::ordered_json;  // keys in the order of the format's description

ordered_json config_to_json(const TrainConfig& config) {
  TrainConfig copy = config;
  ordered_json object = ordered_json::object();
  for (const auto& [key, value] : bind(copy).values()) {
    const std::size_t dot = key.find('.');
    ordered_json& place = dot == std::string::npos ? object[key] : object[key.substr(0, dot)][key.substr(dot + 1)];
    std::visit([&place](const auto& v) { place = v; }, value);
  }
  return object;
}

}  // namespace

std::string header_line(const TrainConfig& config, int ranks) {
  const ordered_json line = {
      {"config", config_to_json(config)}, {"seed", config.seed}, {"ranks", ranks}, {"version", kVersion}};
  return line.dump();
}

std::string step_line(const StepMetrics& metrics) {
  ordered_json memory = ordered_json::object();
  for (int i = 0; i < kNumCategories; ++i)
    memory[std::string(name(static_cast<MemoryCategory>(i)))] = metrics.memory_bytes[static_cast<std::size_t>(i)];
  ordered_json line = {{"step", metrics.step},
                       {"loss", metrics.loss},
                       {"lr", metrics.lr},
                       {"grad_norm", metrics.grad_norm},
                       {"tokens", metrics.tokens},
                       {"tokens_per_second", metrics.tokens_per_second},
                       {"step_seconds", metrics.step_seconds},
                       {"exposed_comm_seconds", metrics.exposed_comm_seconds},
                       {"memory_bytes", std::move(memory)}};
  if (metrics.val_loss) line["val_loss"] = *metrics.val_loss;
  return line.dump();
}

MetricsFile::MetricsFile(std::string path, Mode mode)
    : path_(std::move(path)), file_(std::fopen(path_.c_str(), mode == Mode::append ? "ae" : "we")) {
  check(file_ != nullptr, "cannot create the metrics file \"{}\": {}", path_, std::strerror(errno));
}

void MetricsFile::write(const std::string& line) {
  const bool written = std::fwrite(line.data(), 1, line.size(), file_.get()) == line.size() &&
                       std::fputc('\n', file_.get()) != EOF && std::fflush(file_.get()) == 0;
  check(written, "cannot write the metrics file \"{}\": {}", path_, std::strerror(errno));
}

}  // namespace sherd
