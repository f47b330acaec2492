#pragma once
#include <type_traits>
#include <utility>

#include "runtime/tensor/no_copy.h"

namespace sherd {

/// Puts a value in a place from construction to destruction, which puts back what was there. No place: does nothing.
template <class T>
class ForScope : NoCopy {
 public:
  ForScope(T* place, std::type_identity_t<T> value) : place_(place) {
    if (place_) outer_ = std::exchange(*place_, std::move(value));
  }
  ~ForScope() {
    if (place_) *place_ = std::move(outer_);
  }

 private:
  T* const place_;
  T outer_{};
};

}  // namespace sherd
