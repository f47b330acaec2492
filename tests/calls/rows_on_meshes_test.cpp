// Every row with inputs that lie on meshes which do not go together: one on a mesh of its own beside plain ones, or
// beside others on another mesh, or on one that is gone; eager and captured, on threads and processes. It gives a
// result or an Error on all ranks.
#include <gtest/gtest.h>

#include "compile/compile.h"
#include "dtensor/mesh.h"
#include "dtensor/spec.h"
#include "dtensor/transition/redistribute.h"
#include "runtime/op/rows/ops.h"
#include "tests/support/expect_error.h"
#include "tests/support/op_cases.h"
#include "tests/support/processes.h"
#include "tests/support/ranks.h"

namespace sherd::testing {
namespace {

using Group = std::shared_ptr<ProcessGroup>;

Tensor on(const Spec* spec, const Tensor& t) { return Tensor::distributed(t.shape(), spec, t); }

/// A row's case as a step of one call, so that ranks and modes make it alike.
void try_row(const Op& op, const OpCase& c, const std::vector<Tensor>& in) {
  const std::vector<Tensor> argument{ones({1})};
  CompiledStep step(
      [&](std::span<const Tensor> given) {
        std::vector<Tensor> again = in;
        call_op(op, again, c.attrs);
        return std::vector<Tensor>{given[0] * 2.0};
      },
      CompileOptions{});
  for (int call = 0; call < 2; ++call) {  // eager, recorded
    try {
      step(argument);
    } catch (const Error&) {}
  }
}

void try_rows(const Group& group) {
  const DeviceMesh here(group, "here"), there(group, {{"there", 1}, {"rank", group->size()}});
  const Spec* const whole_here = Spec::of(here, {Replicate()});
  const Spec* const whole_there = Spec::of(there, {Replicate(), Replicate()});
  const Spec* gone = nullptr;
  {
    const DeviceMesh dead(group, {{"gone", 1}, {"with_it", group->size()}});
    gone = Spec::of(dead, {Replicate(), Replicate()});
  }
  for (const OpCase& c : op_cases()) {
    const Op& op = find_op(c.op);
    if (c.large) continue;
    const std::vector<Tensor> plain = inputs_of(c, DType::f32);
    for (std::size_t i = 0; i < std::min<std::size_t>(plain.size(), 4); ++i) {
      if (!plain[i].defined()) continue;
      for (const Spec* const own : {whole_there, gone})
        for (const bool others_are_plain : {true, false}) {
          std::vector<Tensor> in = plain;
          for (std::size_t k = 0; k < in.size(); ++k)
            if (in[k].defined() && (k == i || !others_are_plain)) in[k] = on(k == i ? own : whole_here, in[k]);
          try_row(op, c, in);
        }
    }
  }
}

TEST(RowsOnMeshes, ThatDoNotGoTogetherAreRefusedOnThreads) {
  run_ranks(1, try_rows);
  run_ranks(2, try_rows);
}
// An error in the midst of a redistribution is told to the ranks of the mesh, which is gone here.
TEST(RowsOnMeshes, ARedistributionOnOneThatIsGoneIsAnError) {
  run_ranks(2, [](const Group& group) {
    const Spec *from = nullptr, *to = nullptr;
    {
      const DeviceMesh mesh(group, {{"gone", 1}, {"with_it", 2}});
      from = Spec::of(mesh, {Replicate(), Partial()});
      to = Spec::of(mesh, {Replicate(), Shard(0)});
      redistribute(on(from, ones({2, 2})), to);  // the plan of it is known from here on
    }
    expect_error([&] { redistribute(on(from, ones({2, 2})), to); }, {"the mesh of a tensor", "is gone"});
  });
}

TEST(RowsOnMeshes, ThatDoNotGoTogetherAreRefusedOnProcesses) { run_processes(2, try_rows); }

}  // namespace
}  // namespace sherd::testing
