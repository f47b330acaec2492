// compile/README.md prints who sees what: the table of the fields that classes keep their host state in.
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "dtensor/modes.h"
#include "nn/module.h"
#include "nn/optim/step_in_pieces.h"
#include "nn/parallel/shard/unit/unit_knobs.h"
#include "nn/random_rows.h"
#include "tests/support/source_path.h"

namespace sherd::testing {
namespace {

struct StateOf {
  const char* what;
  std::span<const AttrField> fields;
};
const StateOf kStates[] = {{"a module", nn::ModuleState::fields},
                           {"hooks of gradients", GradHooks::fields},
                           {"random rows", nn::DrawnBy::fields},
                           {"rows that draw", nn::RowsThatDraw::fields},
                           {"distributed rows", DistributedModes::fields},
                           {"a unit's gathers", nn::GatherKnobs::fields},
                           {"a unit's reductions", nn::ReductionKnobs::fields},
                           {"an optimizer", nn::StepInPieces::Asked::fields}};

std::string table() {
  std::string text = "| of | field | seen by | read by |\n|---|---|---|---|\n";
  for (const StateOf& state : kStates)
    for (const AttrField& field : state.fields)
      text += fmt::format("| {} | `{}` | {} | {} |\n", state.what, field.name, name(field.seen), field.why);
  return text;
}

TEST(HostStateTable, StandsInTheReadme) {
  std::ifstream file(source_path("compile/README.md"));
  std::stringstream readme;
  readme << file.rdbuf();
  EXPECT_NE(readme.str().find(table()), std::string::npos) << "compile/README.md wants this table:\n" << table();
  for (const StateOf& state : kStates)
    for (const AttrField& field : state.fields) EXPECT_FALSE(field.why.empty()) << field.name;
}

}  // namespace
}  // namespace sherd::testing
