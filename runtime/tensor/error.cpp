#include "runtime/tensor/error.h"

#include <algorithm>

namespace sherd {

Error::Error(std::string message) : std::runtime_error(message), message_(std::move(message)), text_(message_) {}

void Error::add(std::string label, std::string text) {
  text_ += fmt::format("\n  {:<7} {}", label, text);
  frames_.emplace_back(std::move(label), std::move(text));
}

bool Error::has(const std::string& label) const {
  return std::ranges::find(frames_, label, &std::pair<std::string, std::string>::first) != frames_.end();
}

std::string current_exception_text() noexcept {
  try {
    throw;
  } catch (const std::exception& error) { return error.what(); } catch (...) {
    return "an exception of unknown type";
  }
}

}  // namespace sherd
