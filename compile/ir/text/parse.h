#pragma once
// A program from its complete text form (print.h): parse(text(p)) == p.
#include <string_view>

#include "compile/ir/program.h"

namespace sherd::ir {

/// The program whose text() this is. Names in tables and references are those that the text declares; rows and
/// kinds of attributes are known to this process. Layouts of units are the text's, interned without
/// labels (UnitLayout::of_content). Whether the program is sound is for verify() to say. Error with line and column,
/// and what was expected there, for any other text.
Program parse(std::string_view text);

/// Error if the program's text does not read back as the program.
void check_round_trip(const Program& program);

}  // namespace sherd::ir
