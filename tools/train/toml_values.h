#pragma once
// A TOML file whose keys its reader knows only when it has read it.
#include <cstdint>
#include <string>
#include <vector>

#include "tools/train/flags.h"

namespace sherd::train {

/// A value of a file, as its lines have it.
struct TomlValue {
  std::string key;  ///< with its sections: "row.first.batch"
  ConfigValue value;
  std::int64_t line = 0;
  std::string where;  ///< "a.toml:3"
};
/// All values of a file, in the order of lines. ExitError of usage naming file, line and what is wrong there.
std::vector<TomlValue> read_toml_values(const std::string& path);

}  // namespace sherd::train
