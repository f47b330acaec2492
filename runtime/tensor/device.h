#pragma once
// Where a tensor's bytes are. `meta` has shapes and no bytes: deferred initialisation and planning.
#include <cstdint>
#include <string>

#include "runtime/tensor/error.h"

namespace sherd {

struct Device {
  enum class Kind : std::uint8_t { cpu, cuda, meta };
  Kind kind = Kind::cpu;
  std::uint8_t index = 0;

  static constexpr Device cpu() { return {}; }
  static constexpr Device meta() { return {Kind::meta, 0}; }
  static constexpr Device cuda(std::uint8_t index) { return {Kind::cuda, index}; }
  bool is_meta() const { return kind == Kind::meta; }
  /// Whether a library of its own runs its kernels, on queues of its own (exec/backend.h).
  bool has_backend() const { return kind == Kind::cuda; }
  friend bool operator==(Device, Device) = default;
};
inline constexpr int kNumBackends = 2;  // cpu and cuda run kernels; meta never does

/// "cpu", "cuda:1", "meta".
inline std::string to_string(Device d) {
  if (d.kind == Device::Kind::cpu) return "cpu";
  return d.kind == Device::Kind::meta ? "meta" : fmt::format("cuda:{}", d.index);
}

}  // namespace sherd
