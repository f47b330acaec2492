#pragma once
#include <string>

#include "tools/table/table.h"

namespace sherd::table {

/// What a row changes, why, and what that costs and buys beside the default row: one line of text.
std::string sentence_of(const Row& row, const Row& base);

/// Whether ghosts have predicted every peak to the byte, and every formula of bytes and calls holds, or where not.
std::string verdict_of(const Table& table);

}  // namespace sherd::table
