#pragma once
// Models of devices and fabrics as JSON. Reading is strict: an unknown or missing name, a number that is not finite,
// negative, zero where a rate is wanted, or over 1e18, a curve that falls, a name that comes twice, are Errors with
// line and column. A number is plain, and from what the file's "source" names, or an object with a source of its own.
//
//   {"device": "h100-sxm", "cores": 132, "memory_bytes": 80e9, "launch_s": {"value": 2e-6, "source": "guess"},
//    "flops": {"bf16": {"curve": [[1e9, 2e14], [1e12, 7.9e14]], "source": "mamf"}},
//    "attention": {"bf16": 4e14}, "rows": {"pointwise": 2.7e12},
//    "read_bytes_per_s": 3.35e12, "copy_bytes_per_s": 2.7e12, "peak_flops": 989e12,
//    "links": {"nvlink4": {"alpha_s": 2e-6, "beta_bytes_per_s": 362e9}},
//    "software": {"eager": {"value": 1.6, "source": "row"}}, "source": "data sheet"}
//
//   {"fabric": "ib400x1", "alpha_s": 5e-6, "beta_bytes_per_s": 45e9, "nics": 1, "call_s": 1e-5,
//    "curves": {"gather": [[8, 1e6, 3e-5], [8, 1e9, 2e-3]]}, "source": "..."}
//
// A rate that is an object may say "extrapolated": true, where it is of other work than it stands for.
// Sizes of "flops" and "attention" are FLOPs of a call, of others bytes. Points of "curves" are ranks, bytes of the
// full tensor and seconds; names are gather, scatter, reduce_all, all_to_all.
#include <string>
#include <string_view>

#include "runtime/exec/price.h"

namespace sherd {

struct JsonValue;

/// `file` begins the message of an Error.
DeviceModel parse_device_model(std::string_view text, std::string_view file);
/// The same of a value within a larger file.
DeviceModel read_device_model(const JsonValue& value, std::string_view file);
FabricModel parse_fabric_model(std::string_view text, std::string_view file);
/// What the parsers read, to the bit.
std::string print(const DeviceModel& model);
std::string print(const FabricModel& model);

}  // namespace sherd
