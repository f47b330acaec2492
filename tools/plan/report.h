#pragma once
// A plan as people and programs read it.
#include <string>
#include <utility>
#include <vector>

#include "tools/plan/answer.h"
#include "tools/table/table.h"

namespace sherd::plan {

struct Report {
  std::vector<std::pair<std::string, std::string>> about{};  ///< model, ranks, device: names and values
  std::vector<std::string> answer{};                         ///< the recommendation first
  std::vector<std::string> flips{};
  std::vector<std::string> searched{};  ///< what a search has looked at, and left out
  table::Table table{};                 ///< as `sherd walk` fills it, all of it predicted
  std::vector<std::string> peaks{};     ///< by row: where the peak is
  std::vector<std::string> assumed{};   ///< what predictions rest on
};

/// A row of the table.
table::Row row_of(const Option& option, const PlannedFor& planned, const ModelSize& size);
/// "backward, blocks.31.mlp, matmul": phase, module and op of the moment.
std::string moment_text(const MemoryLog::Moment& moment);
/// Where prices are from, and what is not known of them.
std::vector<std::string> assumptions(const std::vector<Option>& options, const PlannedFor& planned);

/// The answer first, then flip points, the table and what was assumed.
std::string to_text(const Report& report, const PlannedFor& planned);
/// One object per line: {..., "answer", "flips", "assumed"}, then one for each row as tools/table prints it.
std::string to_json(const Report& report);

}  // namespace sherd::plan
