#include "nn/plan/choices.h"

#include <algorithm>
#include <filesystem>
#include <initializer_list>
#include <limits>
#include <utility>

#include "runtime/tensor/error.h"
#include "runtime/tensor/quantity.h"

namespace sherd::nn {

namespace {

// What rows compute with.
constexpr double kLeastScale = std::numeric_limits<float>::min(), kMostScale = std::numeric_limits<float>::max();

/// "what" or "what:folder".
struct Place {
  std::string_view what, folder;
};

Place parse_place(std::string_view text, std::string_view key, std::initializer_list<std::string_view> choices,
                  std::string_view expected) {
  const std::size_t colon = text.find(':');
  const Place place{text.substr(0, colon), colon == text.npos ? "" : text.substr(colon + 1)};
  check(std::ranges::find(choices, place.what) != choices.end(), "{} must be {}, got \"{}\"", key, expected, text);
  check(colon == text.npos || place.what != "none", "{} = {}: none needs no folder", key, text);
  check(colon == text.npos || !place.folder.empty(), "{} = {}: the folder after the colon is empty", key, text);
  return place;
}

std::string folder_for(const std::string& folder, Device device) {
  return device == Device::cpu() && folder.empty() ? std::filesystem::temp_directory_path().string() : folder;
}

}  // namespace

bool Travel::parse(std::string_view text) {
  check(text == "exact" || text == "int8", "must be exact or int8, got \"{}\"", text);
  return text == "exact";
}

bool Numerics::parse(std::string_view text) {
  check(text == "default" || text == "layout_free", "numerics must be default or layout_free, got \"{}\"", text);
  return text == "layout_free";
}

LossScale LossScale::parse(std::string_view text) {
  if (text == "auto" || text == "dynamic" || text == "none") return {std::string(text), std::nullopt};
  const std::optional<double> scale = parse_number(text);
  check(
      scale && *scale >= kLeastScale && *scale <= kMostScale,
      "loss_scale must be auto, dynamic, none or a positive number, from {:.8g} to {:.8g} as f32 has them, got \"{}\"",
      kLeastScale, kMostScale, text);
  return {std::string(text), scale};
}

std::optional<LossScaler::Options> LossScale::options(bool has_f16) const {
  if (fixed_) return LossScaler::Options::fixed(*fixed_);
  return text_ == "dynamic" || (text_ == "auto" && has_f16) ? std::optional(LossScaler::Options{}) : std::nullopt;
}

Offload Offload::parse(std::string_view text) {
  const Place place = parse_place(text, "offload", {"none", "optimizer", "parameters", "all"},
                                  "none, optimizer, parameters or all, perhaps with a folder as in all:DIR");
  return {place.what, place.folder};
}

OffloadOptions Offload::state_options(std::int64_t kept, Device device, std::int64_t memory_limit) const {
  OffloadOptions options{.folder = folder_for(folder_, device), .bytes_in_memory = parameters() ? kept / 2 : kept};
  if (memory_limit > 0)
    options.bytes_in_flight = std::clamp<std::int64_t>(memory_limit / 8, 4096, options.bytes_in_flight);
  return options;
}

std::optional<ShardOffload> Offload::shards(std::int64_t kept, Device device, std::int64_t memory_limit) const {
  if (!parameters()) return std::nullopt;
  const OffloadOptions state = state_options(kept, device, memory_limit);
  return ShardOffload{.folder = state.folder,
                      .gradients = gradients(),
                      .bytes_in_flight = state.bytes_in_flight,
                      .bytes_in_memory = optimizer() ? kept / 2 : kept};
}

OffloadActivations OffloadActivations::parse(std::string_view text) {
  const Place place = parse_place(text, "offload_activations", {"none", "blocks"}, "none, blocks or blocks:DIR");
  return {place.what, place.folder};
}

OffloadSavedOptions OffloadActivations::options(Device device, std::int64_t memory_limit) const {
  OffloadSavedOptions options{.folder = folder_for(folder_, device)};
  if (memory_limit > 0)
    options.bytes_in_flight =
        std::clamp<std::int64_t>(memory_limit / 8, 2 * options.least_bytes, options.bytes_in_flight);
  return options;
}

}  // namespace sherd::nn
