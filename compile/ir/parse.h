#pragma once
// A program from its complete text form (print.h): parse(text(p)) == p.
#include <string_view>

#include "compile/ir/program.h"
#include "runtime/op/attr_text.h"

namespace sherd {

/// The program whose text() this is. Names in tables and references are those that the text declares; rows and
/// attributes are known to this process, groups to `names`. Whether the program is sound is for verify() to say. Error
/// with line and column, and what was expected there, for any other text.
Program parse(std::string_view text, const AttrNames& names = {});

/// Error if the program's text does not read back as the program. Attributes are read with the groups that the program
/// itself holds.
void check_round_trip(const Program& program);

}  // namespace sherd
