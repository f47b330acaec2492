#pragma once
#include <string_view>

namespace sherd::nn {

/// The unit (wrap/unit.h), as its parts see it.
class UnitListener {
 public:
  /// A gradient of this pass has arrived.
  virtual void arrived() = 0;
  /// All gradients of this pass are complete; `are_all`: every parameter has one.
  virtual void completed(bool are_all) = 0;
  /// Gradients are about to be communicated.
  virtual void communicates() = 0;
  /// A step was left by an exception: return to the state between steps, without communication. Peers that wait for
  /// this rank raise CommError with `reason`; so does every further collective until the group's reset().
  virtual void abandon(std::string_view reason) noexcept = 0;

 protected:
  ~UnitListener() = default;
};

}  // namespace sherd::nn
