#pragma once
#include <string>

#include "tools/table/table.h"

namespace sherd::table {

/// What a row changes, why, and what that costs and buys beside the default row: one line of text.
std::string sentence_of(const Row& row, const Row& base);

/// Whether every byte and call of the rows that have run is as ghosts have predicted, or where not.
std::string verdict_of(const Table& table);

}  // namespace sherd::table
