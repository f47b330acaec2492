// Gradients under a bf16 policy against those that PyTorch's fully_shard computes:
// tests/golden/fully_shard.safetensors, written by tools/golden/make_fully_shard.py, which has the same models.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "nn/layers/embedding.h"
#include "runtime/autograd/autograd.h"
#include "tests/parallel/nets.h"
#include "tests/support/golden.h"
#include "tests/support/processes.h"
#include "tests/support/ranks.h"

namespace sherd::testing {
namespace {

using Group = std::shared_ptr<ProcessGroup>;

/// An embedding whose table is the head's weight too.
struct TiedTable : nn::Layer<TiedTable> {
  nn::Embedding& table;
  nn::Linear& middle;
  nn::Parameter& head;
  TiedTable()
      : table(add<nn::Embedding>("table", 7, 4)),
        middle(add<nn::Linear>("middle", 4, 4)),
        head(share_parameter("head", table.weight)) {}
  Tensor forward(const Tensor& tokens) { return linear(relu(middle(table(tokens))), head); }
};

Tensor tensor_of(const GoldenTensor& stored) {
  const Shape shape{std::span<const std::int64_t>(stored.shape)};
  if (stored.dtype == "I64") return Tensor::from<std::int64_t>(stored.i64, shape);
  return Tensor::from<float>(stored.f32, shape);
}

/// One unit in the last place of a bf16 number as large as the largest.
double bf16_ulp_of(const std::vector<float>& values) {
  double scale = 0;
  for (const float v : values) scale = std::max(scale, std::fabs(static_cast<double>(v)));
  return scale == 0 ? 0 : std::ldexp(1.0, std::ilogb(scale) - 7);
}

/// PyTorch names a tied parameter by the first module that has it.
std::string name_there(const std::string& name) { return name == "head" ? "table.weight" : name; }

/// A model whose parameters have the values of the file, under `mesh`.
template <class Model>
void expect_gradients(Model& net, const DeviceMesh& mesh, const Group& group, const Golden& golden,
                      const std::string& problem, const std::string& mesh_name) {
  for (const auto& [name, p] : net.named_parameters())
    p->set(tensor_of(golden.at(problem + ".in." + name_there(name))));
  const nn::UnitPolicy options{.mp_policy = {.param_dtype = DType::bf16}};
  if constexpr (requires { net.blocks; }) shard(net, mesh, options, options);
  else nn::fully_shard(net, mesh, options);
  const Tensor x = tensor_of(golden.at(problem + ".in.x"));
  const Tensor cotangent = tensor_of(golden.at(problem + ".in.cotangent"));
  backward(net(contiguous(slice_of(x, *group))), {.grad = cast(contiguous(slice_of(cotangent, *group)), DType::bf16)});
  for (const auto& [name, p] : net.named_parameters()) {
    const std::vector<float>& expected = golden.at(problem + "." + mesh_name + ".grad." + name_there(name)).f32;
    const bool is_exact = problem.ends_with(".integers");
    const double limit = is_exact ? 0 : bf16_ulp_of(expected);
    ASSERT_EQ(p->grad().dtype(), DType::f32);
    const std::vector<float> actual = whole(p->grad()).template to_vector<float>();
    ASSERT_EQ(actual.size(), expected.size());
    for (std::size_t i = 0; i < actual.size(); ++i)
      EXPECT_LE(std::fabs(static_cast<double>(actual[i]) - expected[i]), limit)
          << problem << " on " << mesh_name << ": " << name << "[" << i << "]";
  }
}

void expect_as_fsdp2(const Group& group, const DeviceMesh& mesh, const std::string& mesh_name,
                     const std::string& numbers) {
  const Golden golden("fully_shard");
  Net even({8, 8, 4}), uneven({5, 7, 3});
  TiedTable tied;
  expect_gradients(even, mesh, group, golden, "even." + numbers, mesh_name);
  expect_gradients(uneven, mesh, group, golden, "uneven." + numbers, mesh_name);
  expect_gradients(tied, mesh, group, golden, "tied." + numbers, mesh_name);
}

// A mean of integers over 3 ranks is not exact, so there are none.
TEST(FullyShard, F183_GradientsOfABf16PolicyAreThoseOfFsdp2) {
  for (const int ranks : {2, 3, 4})
    for (const std::string numbers : {"integers", "normals"})
      if (ranks != 3 || numbers == "normals")
        run_ranks(ranks, [&](const Group& group) {
          expect_as_fsdp2(group, DeviceMesh(group), fmt::format("dp{}", ranks), numbers);
        });
}

TEST(FullyShard, F183_GradientsOfABf16PolicyOverReplicasAreThoseOfFsdp2) {
  for (const std::string numbers : {"integers", "normals"})
    run_ranks(4, [&](const Group& group) {
      expect_as_fsdp2(group, DeviceMesh(group, {{"replicate", 2}, {"dp", 2}}), "replicate2_dp2", numbers);
    });
}

TEST(FullyShard, F183_GradientsOfABf16PolicyAreThoseOfFsdp2WithProcesses) {
  run_processes(2, [](const Group& group) { expect_as_fsdp2(group, DeviceMesh(group), "dp2", "integers"); });
}

}  // namespace
}  // namespace sherd::testing
