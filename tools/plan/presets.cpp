#include "tools/plan/presets.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include <fmt/ranges.h>

#include "runtime/exec/price_json.h"
#include "runtime/exec/strict_json.h"
#include "runtime/tensor/nearest.h"
#include "tools/train/exit_status.h"
#include "tools/train/output_file.h"

namespace sherd::plan {

using namespace train;

namespace {

constexpr std::size_t kMaxBytes = std::size_t{4} << 20;

/// A text, and what errors call it.
struct Text {
  std::string text, name;
};

Text read_file(const std::string& path, std::string_view flag) {
  const OutputFile file(std::fopen(path.c_str(), "re"));
  const int error = errno;
  check_usage(file != nullptr, "{} {}: cannot read it: {}", flag, path, std::strerror(error));
  Text result{.text = std::string(kMaxBytes + 1, '\0'), .name = path};
  result.text.resize(std::fread(result.text.data(), 1, result.text.size(), file.get()));
  check_usage(std::ferror(file.get()) == 0, "{} {}: cannot read it", flag, path);
  check_usage(result.text.size() <= kMaxBytes, "{} {}: it is too large to be a model", flag, path);
  return result;
}

Text find(std::string_view folder, const std::string& name, std::string_view flag) {
  if (name.find('/') != name.npos || name.ends_with(".json")) return read_file(name, flag);
  for (const PresetFile& file : preset_files())
    if (file.folder == folder && file.name == name) return {std::string(file.text), name};
  const std::vector<std::string> names = preset_names(folder);
  throw ExitError(kUsage, fmt::format("{} {}: there is none of that name{}; there are {}, and files by their path",
                                      flag, name, did_you_mean(name, names), fmt::join(names, ", ")));
}

}  // namespace

std::vector<std::string> preset_names(std::string_view folder) {
  std::vector<std::string> names;
  for (const PresetFile& file : preset_files())
    if (file.folder == folder) names.emplace_back(file.name);
  return names;
}

bool is_preset_device(std::string_view name) {
  const std::vector<std::string> names = preset_names("devices");
  return std::ranges::find(names, name) != names.end();
}

DeviceModel find_device(const std::string& name_or_path, std::string_view flag) {
  const Text found = find("devices", name_or_path, flag);
  return as_usage([&] { return parse_device_model(found.text, found.name); });
}

Calibration find_priced_device(const std::string& name_or_path, std::string_view flag) {
  const Text found = find("devices", name_or_path, flag);
  return as_usage([&] {
    const JsonValue root = parse_strict_json(found.text, found.name);
    if (root.find("calls")) return parse_calibration(found.text, found.name);
    return Calibration{.device = read_device_model(root, found.name)};
  });
}

FabricModel find_fabric(const std::string& name_or_path, std::string_view flag) {
  const Text found = find("fabrics", name_or_path, flag);
  return as_usage([&] { return parse_fabric_model(found.text, found.name); });
}

}  // namespace sherd::plan
