#pragma once
#include <string>

#include "tools/table/table.h"

namespace sherd::table {

/// The table as one picture, an SVG document that needs nothing else: for each row the memory at the peak by category,
/// what it waits for transfers, and tokens per second, measured; a tick where something else is predicted.
std::string to_svg(const Table& table);

}  // namespace sherd::table
