#include "runtime/comm/group/device_group.h"

#include <utility>

#include "runtime/comm/group/agree.h"
#include "runtime/exec/backend.h"
#include "runtime/tensor/error.h"

namespace sherd {

std::string why_no_device_group(Device device) {
  if (device == Device::cpu()) return "no library moves memory of the host";
  const comm::DeviceGroups* groups = nullptr;
  try {
    groups = backend_of(device).device_groups();
  } catch (const Error& error) { return error.message(); }
  return groups ? groups->why_none()
                : fmt::format("the backend of {} has no library of collectives", to_string(device));
}

std::shared_ptr<ProcessGroup> make_device_group(std::shared_ptr<ProcessGroup> host, NcclGroupOptions options) {
  const Device device = options.device;
  together(*host, [&] {
    const std::string why = why_no_device_group(device);
    check(why.empty(), "ranks on {} cannot talk to each other: {}", to_string(device), why);
  });
  return backend_of(device).device_groups()->make(std::move(host), std::move(options));
}

}  // namespace sherd
