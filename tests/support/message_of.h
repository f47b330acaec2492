#pragma once
// The message of an error, to be compared as a whole; expect_error() does where parts of it matter.
#include <string>

#include "runtime/tensor/error.h"

namespace sherd::testing {

/// What the Error says that `fn()` throws, without what the dispatcher added; "no error" if it throws none.
template <class Fn>
std::string message_of(const Fn& fn) {
  try {
    fn();
  } catch (const Error& error) { return error.message(); }
  return "no error";
}

}  // namespace sherd::testing
