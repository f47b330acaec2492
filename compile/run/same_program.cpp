#include "compile/run/same_program.h"

#include <optional>
#include <string>

#include <fmt/format.h>

#include "compile/ir/text/print.h"
#include "runtime/comm/group/agree.h"
#include "runtime/exec/purpose.h"

namespace sherd {

bool check_same_program(const ir::Program* program, ProcessGroup& group) {
  if (group.size() == 1) return program != nullptr;
  const PurposeScope purpose("compile");
  std::optional<Facts> own;
  if (program) own.emplace();
  if (program)
    for (std::string& line : lines(*program, {.rank_neutral = true}))
      own->emplace_back(fmt::format("line {} of the graph", own->size() + 1), std::move(line));
  return agree(group, own,
               {"the captured step is not the same program on all ranks",
                "all ranks must call the same ops in the same order. A step whose ranks agree in collectives alone is "
                "compiled with CompileOptions{.group = nullptr}, and is not compared"});
}

}  // namespace sherd
