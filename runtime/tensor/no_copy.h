#pragma once

namespace sherd {

/// Base of a class whose objects are neither copied nor moved: a scope, an owner, a place that others point to.
class NoCopy {
 public:
  NoCopy(const NoCopy&) = delete;
  NoCopy& operator=(const NoCopy&) = delete;

 protected:
  NoCopy() = default;
  ~NoCopy() = default;
};

}  // namespace sherd
