#pragma once
// Throughput that others have published, predicted and compared. docs: tools/plan/published/README.md.
#include <string>

namespace sherd::plan {

/// A table of the rows of a file, each with what is predicted of it and the error; then what the file calls not
/// covered. ExitError of usage naming file, row and key for what is wrong in it.
std::string published_text(const std::string& path);

}  // namespace sherd::plan
