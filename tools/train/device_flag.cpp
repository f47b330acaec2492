#include "tools/train/device_flag.h"

#include <charconv>

#include "runtime/comm/group/device_support.h"
#include "runtime/exec/context.h"

namespace sherd {

Device parse_device(std::string_view text) {
  constexpr std::string_view kCuda = "cuda";
  if (text == "cpu") return Device::cpu();
  if (text == kCuda) return Device::cuda(0);
  if (text.starts_with("cuda:")) {
    const std::string_view digits = text.substr(kCuda.size() + 1);
    std::uint8_t index = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), index);
    if (error == std::errc{} && end == digits.data() + digits.size()) return Device::cuda(index);
  }
  fail("device must be {}, got \"{}\"", kDeviceHelp, text);
}

Device open_device(Device device, int ranks, std::int64_t memory_limit) {
  check(device == Device::cpu() || ranks == 1, "device = {} on {} ranks: {}", to_string(device), ranks, kRanksOnGpus);
  RankContext::current().allocator(device).set_limit(memory_limit);
  return device;
}

}  // namespace sherd
