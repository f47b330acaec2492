#pragma once
// Files that are no text, told by their first bytes, their names, or a NUL: read as text they would train a model on
// noise without a word.
#include <optional>
#include <string>
#include <string_view>

#include "nn/data/text_files.h"

namespace sherd {

/// What a file is, and what its owner does instead; of a table, for ever.
struct NotText {
  std::string_view what;    ///< "is gzip"
  std::string_view remedy;  ///< "decompress it first (gunzip)"
};

/// How much of a file is looked at.
inline constexpr std::int64_t kTextHeadBytes = 1 << 16;

/// Nothing if a file of this name, whose first kTextHeadBytes are `head`, may be text.
std::optional<NotText> not_text(std::string_view name, std::string_view head);

/// Opens and reads the head of each file, once. Throws Error naming the first file that is no text, what it is, and the
/// way out.
void check_is_text(const TextFiles& files);

}  // namespace sherd
