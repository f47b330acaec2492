#pragma once
// A descriptor of cuDNN's backend API: a type, and attributes by number.
#include <cstring>
#include <map>
#include <vector>

#include <cudnn.h>

namespace sherd::cuda::emulated {

struct Attribute {
  cudnnBackendAttributeType_t type;
  std::int64_t count = 0;
  std::vector<std::byte> bytes;
};

struct Descriptor {
  cudnnBackendDescriptorType_t type;
  bool finalized = false;
  std::map<int, Attribute> attributes{};

  bool has(cudnnBackendAttributeName_t name) const { return attributes.contains(name); }
  template <class T>
  std::vector<T> list(cudnnBackendAttributeName_t name) const {
    const auto found = attributes.find(name);
    if (found == attributes.end()) return {};
    std::vector<T> values(found->second.bytes.size() / sizeof(T));
    std::memcpy(static_cast<void*>(values.data()), found->second.bytes.data(), values.size() * sizeof(T));
    return values;
  }
  /// The first value; T{} without one.
  template <class T>
  T value(cudnnBackendAttributeName_t name) const {
    T first{};
    const auto found = attributes.find(name);
    if (found != attributes.end() && found->second.bytes.size() >= sizeof(T))
      std::memcpy(static_cast<void*>(&first), found->second.bytes.data(), sizeof(T));
    return first;
  }
  Descriptor* descriptor(cudnnBackendAttributeName_t name) const {
    return static_cast<Descriptor*>(value<cudnnBackendDescriptor_t>(name));
  }
};

}  // namespace sherd::cuda::emulated
