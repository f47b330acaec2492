#include "tests/support/golden.h"

#include <bit>
#include <cstring>
#include <fstream>
#include <iterator>
#include <set>
#include <stdexcept>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "tests/support/source_path.h"

namespace sherd::testing {
namespace {

using Json = nlohmann::json;
static_assert(std::endian::native == std::endian::little, "safetensors files are little-endian");

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error(fmt::format("golden {}: cannot be opened", path));
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

template <class T>
std::vector<T> elements(std::string_view bytes) {
  std::vector<T> values(bytes.size() / sizeof(T));
  std::memcpy(values.data(), bytes.data(), values.size() * sizeof(T));
  return values;
}

GoldenTensor tensor_of(const Json& entry, std::string_view data, const std::string& path, const std::string& key) {
  GoldenTensor tensor;
  tensor.dtype = entry.at("dtype").get<std::string>();
  tensor.shape = entry.at("shape").get<std::vector<std::int64_t>>();
  const auto offsets = entry.at("data_offsets").get<std::vector<std::size_t>>();
  std::size_t count = 1;
  for (const std::int64_t size : tensor.shape) count *= static_cast<std::size_t>(size);
  const std::size_t bytes = count * (tensor.dtype == "I64" ? 8 : 4);
  if (offsets.size() != 2 || offsets[1] > data.size() || offsets[0] + bytes != offsets[1])
    throw std::runtime_error(fmt::format("golden {}: {}: offsets do not fit shape and file", path, key));
  const std::string_view own = data.substr(offsets[0], bytes);
  if (tensor.dtype == "F32") tensor.f32 = elements<float>(own);
  else if (tensor.dtype == "I64") tensor.i64 = elements<std::int64_t>(own);
  else throw std::runtime_error(fmt::format("golden {}: {}: dtype {}, expected F32 or I64", path, key, tensor.dtype));
  return tensor;
}

std::map<std::string, double> attributes_of(const std::string& text) {
  std::map<std::string, double> attributes;
  const Json object = Json::parse(text);
  for (const auto& [name, value] : object.items())
    attributes[name] = value.is_boolean() ? static_cast<double>(value.get<bool>()) : value.get<double>();
  return attributes;
}

}  // namespace

Golden::Golden(std::string_view file) : file_(source_path(fmt::format("tests/golden/{}.safetensors", file))) {
  const std::string bytes = read_file(file_);
  std::uint64_t header_bytes = 0;
  if (bytes.size() >= 8) std::memcpy(&header_bytes, bytes.data(), 8);
  if (bytes.size() < 8 || header_bytes > bytes.size() - 8)
    throw std::runtime_error(fmt::format("golden {}: {} bytes do not hold the header", file_, bytes.size()));
  const Json header = Json::parse(bytes.substr(8, header_bytes));
  const std::string_view data = std::string_view(bytes).substr(8 + header_bytes);
  for (const auto& [key, entry] : header.items()) {
    if (key != "__metadata__") {
      tensors_[key] = tensor_of(entry, data, file_, key);
      continue;
    }
    for (const auto& [name, text] : entry.items())
      if (name != "note") attributes_[name] = attributes_of(text.get<std::string>());
  }
}

const GoldenTensor& Golden::at(const std::string& key) const {
  const auto found = tensors_.find(key);
  if (found == tensors_.end()) throw std::out_of_range(fmt::format("golden {}: no tensor \"{}\"", file_, key));
  return found->second;
}

std::vector<std::string> Golden::cases(std::string_view prefix) const {
  std::set<std::string> found;
  for (const auto& [key, tensor] : tensors_)
    if (key.starts_with(prefix)) found.insert(key.substr(0, key.find('.')));
  return {found.begin(), found.end()};
}

std::vector<std::string> Golden::names(const std::string& test_case, std::string_view part) const {
  const std::string prefix = fmt::format("{}.{}.", test_case, part);
  std::vector<std::string> found;
  for (const auto& [key, tensor] : tensors_)
    if (key.starts_with(prefix)) found.push_back(key.substr(prefix.size()));
  return found;
}

double Golden::number(const std::string& test_case, const std::string& attribute) const {
  const auto found = attributes_.find(test_case);
  if (found == attributes_.end() || !found->second.contains(attribute))
    throw std::out_of_range(fmt::format("golden {}: {} has no attribute \"{}\"", file_, test_case, attribute));
  return found->second.at(attribute);
}

std::int64_t Golden::integer(const std::string& test_case, const std::string& attribute) const {
  return static_cast<std::int64_t>(number(test_case, attribute));
}

bool Golden::flag(const std::string& test_case, const std::string& attribute) const {
  return number(test_case, attribute) != 0;
}

}  // namespace sherd::testing
