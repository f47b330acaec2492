#include "nn/optim/check_options.h"

#include <algorithm>
#include <limits>

#include "runtime/tensor/error.h"

namespace sherd::nn {

void check_not_negative(std::string_view what, double value) {
  check(value >= 0 && value <= std::numeric_limits<float>::max(), "{} must be a finite f32 of at least 0, got {}", what,
        value);
}

void check_not_subnormal(std::string_view what, double value) {
  constexpr double kLeast = std::numeric_limits<float>::min();
  check(!(value > 0 && value < kLeast), "{} must be at least {:.8g}, the least normal f32, where it is above 0, got {}",
        what, kLeast, value);
}

void check_decay_rate(std::string_view what, double value) {
  check(value >= 0 && value < 1, "{} must lie in [0, 1), got {}", what, value);
}

void check_each_once(const std::vector<Parameter*>& parameters, std::string_view what) {
  std::vector<const Parameter*> sorted(parameters.begin(), parameters.end());
  std::ranges::sort(sorted);
  check(sorted.empty() || sorted.front(), "a null pointer is among the parameters of {}", what);
  const auto twice = std::ranges::adjacent_find(sorted);
  if (twice != sorted.end()) fail("parameter \"{}\" is twice in the list of {}; name it once", (*twice)->name(), what);
}

}  // namespace sherd::nn
