#pragma once
// Errors are part of the interface: a test names what the message must say.
#include <initializer_list>
#include <string>
#include <string_view>

#include <gtest/gtest.h>

#include "runtime/tensor/error.h"

namespace sherd::testing {

/// Expects that `fn()` throws Error and that its text holds every one of `parts`.
template <class Fn>
void expect_error(Fn&& fn, std::initializer_list<std::string_view> parts) {
  try {
    fn();
  } catch (const Error& error) {
    const std::string text = error.what();
    for (const std::string_view part : parts)
      EXPECT_NE(text.find(part), std::string::npos) << "\"" << part << "\" is not in: " << text;
    return;
  }
  ADD_FAILURE() << "no Error was thrown; one that says \"" << *parts.begin() << "\" was expected";
}

}  // namespace sherd::testing
