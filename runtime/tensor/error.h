#pragma once
// Errors that teach: what was wrong with both values, in the user's words. Code states only what it knows;
// the dispatcher, the module call and the rank add their lines on the way up through Error::add().
#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace sherd {

/// The call is wrong. `what()` is the message, then one indented line per context frame.
class Error : public std::runtime_error {
 public:
  explicit Error(std::string message);
  /// Adds a context line such as {"module", "layers.3.mlp.w1"}; frames print in the order they were added.
  void add(std::string label, std::string text);
  bool has(const std::string& label) const;
  const std::string& message() const { return message_; }
  const char* what() const noexcept override { return text_.c_str(); }

 private:
  std::string message_;
  std::vector<std::pair<std::string, std::string>> frames_;
  std::string text_;
};

/// A peer failed, disagreed, or did not come in time. Every rank of the group raises one.
class CommError : public Error {
 public:
  using Error::Error;
};

/// The byte limit or the system refused memory. The message lists the largest owners by category.
class OutOfMemory : public Error {
 public:
  using Error::Error;
};

/// In a handler: what the exception says.
std::string current_exception_text() noexcept;

/// Out of line: who checks keeps no room and no registers for the message.
template <class... Args>
[[noreturn, gnu::cold, gnu::noinline]] void fail(fmt::format_string<Args...> format, Args&&... args) {
  throw Error(fmt::format(format, std::forward<Args>(args)...));
}

/// Throws Error with the formatted message unless `condition` holds.
template <class... Args>
void check(bool condition, fmt::format_string<Args...> format, Args&&... args) {
  if (!condition) [[unlikely]]
    fail<Args...>(format, std::forward<Args>(args)...);
}

}  // namespace sherd
