#pragma once
// Pieces of pictures, as text.
#include <string>
#include <string_view>

#include "runtime/memory/accounting.h"

namespace sherd::table {

/// Its color in all pictures.
std::string_view color_of(MemoryCategory category);

/// As it may stand between tags and in attributes.
std::string escaped(std::string_view text);

/// Text that begins at x on the line y; `more` is attributes: class="t" is a title, class="n" small.
std::string text_at(double x, double y, std::string_view text, std::string_view more = "");

/// An SVG document that needs nothing else: `body` on white.
std::string document(int width, int height, std::string_view body);

}  // namespace sherd::table
