#pragma once
// `--device` of train, eval and sample.
#include <string>
#include <string_view>

#include "runtime/tensor/device.h"

namespace sherd {

inline constexpr const char* kDeviceHelp = "cpu, cuda (the first GPU) or cuda:N";

/// "cpu", "cuda" or "cuda:1". Throws Error for anything else; whether there is such a device is asked by open_device().
Device parse_device(std::string_view text);

/// Opens the device for this rank and limits the bytes of its tensors (0: no limit). Throws Error, saying what is
/// missing, if this host has no such device, and if there are several ranks on GPUs.
Device open_device(Device device, int ranks, std::int64_t memory_limit = 0);

}  // namespace sherd
