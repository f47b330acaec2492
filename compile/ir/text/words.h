#pragma once
// The words of the complete text form, which print.cpp writes and parse.cpp reads.
#include <array>
#include <string>
#include <string_view>

#include "compile/ir/program.h"

namespace sherd::ir {

inline constexpr std::array<std::string_view, 3> kPhaseNames{"forward", "backward", "optimizer"};

struct SlotFlag {
  std::string_view name;
  bool GraphSlot::* member;
};
inline constexpr SlotFlag kSlotFlags[] = {{"requires_grad", &GraphSlot::requires_grad},
                                          {"leaves_requires_grad", &GraphSlot::leaves_requires_grad},
                                          {"had_value", &GraphSlot::had_value},
                                          {"had_grad", &GraphSlot::had_grad},
                                          {"drops_grad_first", &GraphSlot::drops_grad_first},
                                          {"local", &GraphSlot::is_local}};

inline constexpr std::string_view kGradSuffix = ".grad";

/// What a word consists of; anything else stands in quotes.
inline bool is_word_character(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
         std::string_view("_./~-").find(c) != std::string_view::npos;
}

/// "w", with \\, \", and \x0a for what is not printable ASCII.
std::string quoted(std::string_view text);
/// A word stands as it is, unless it looks like the gradient of a slot.
std::string plain_or_quoted(std::string_view text);

}  // namespace sherd::ir
