#pragma once
// The oracle of sharding rules: the same function of the same tensors on one rank, its value and its gradients.
#include <functional>
#include <memory>
#include <vector>

#include "dtensor/api.h"
#include "dtensor/scopes.h"
#include "runtime/autograd/autograd.h"
#include "runtime/autograd/slot.h"
#include "tests/dtensor/layouts.h"
#include "tests/support/draw.h"
#include "tests/support/near.h"
#include "tests/support/ranks.h"

namespace sherd::testing {

using Function = std::function<Tensor(const std::vector<Tensor>&)>;

/// f(inputs), then the gradient of each floating input for a fixed gradient of the result.
inline std::vector<Tensor> value_and_gradients(const Function& f, const std::vector<Tensor>& inputs) {
  std::vector<std::unique_ptr<Slot>> slots;
  std::vector<Tensor> tensors;
  for (const Tensor& t : inputs) {
    slots.push_back(std::make_unique<Slot>("x", t.defined() && is_floating(t.dtype())));
    if (t.defined()) slots.back()->set(t);
    tensors.push_back(slots.back()->requires_grad() ? slots.back()->value() : t);
  }
  const Tensor y = f(tensors);
  std::vector<Tensor> results{y.detach()};
  if (!y.requires_grad()) return results;
  Tensor dy = draw(normal(y.shape()), y.dtype(), 77);
  if (y.is_distributed()) dy = laid_out(dy, Spec::replicate(Spec::from(y).mesh()));
  backward(y, {.grad = dy});
  for (const auto& slot : slots)
    if (slot->requires_grad()) results.push_back(slot->grad());
  return results;
}

/// f of `inputs` in these layouts (null: plain) gives what f gives on one rank, and so do its gradients. Collective.
inline void expect_as_on_one_rank(const Function& f, const std::vector<Tensor>& inputs,
                                  const std::vector<const Spec*>& layouts) {
  std::vector<Tensor> cut;
  std::string what;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    cut.push_back(layouts[i] ? laid_out(inputs[i], layouts[i]) : inputs[i]);
    if (inputs[i].defined()) what += (i ? "  " : "") + describe(cut.back());
  }
  const std::vector<Tensor> expected = value_and_gradients(f, inputs), got = value_and_gradients(f, cut);
  ASSERT_EQ(got.size(), expected.size()) << what;
  for (std::size_t i = 0; i < got.size(); ++i)
    EXPECT_TRUE(near(full_tensor(got[i]), expected[i]))
        << what << " -> " << describe(got[i]) << (i ? fmt::format(", gradient {}", i - 1) : "");
}

/// `body` on meshes of one axis of 1 to 4 ranks, and of 2 x 2.
inline void on_meshes(const std::function<void(const DeviceMesh&)>& body) {
  for (int ranks : {1, 2, 3, 4})
    run_ranks(ranks, [&](const std::shared_ptr<ProcessGroup>& group) { body(DeviceMesh(group, "tp")); });
  run_ranks(4, [&](const std::shared_ptr<ProcessGroup>& group) { body(DeviceMesh(group, {{"dp", 2}, {"tp", 2}})); });
}

/// One input in every layout of `choices`. Each rank draws its own copy: ranks must not share storages.
inline void expect_in_every_layout(const Function& f, const Arg& x, const std::vector<Placement>& choices) {
  on_meshes([&](const DeviceMesh& mesh) {
    const Tensor whole = draw(x, DType::f32, 5);
    for (const Spec* layout : all_layouts(mesh, choices)) expect_as_on_one_rank(f, {whole}, {layout});
  });
}

/// f communicates nothing and its result has the placement `expected`, on a mesh of one axis.
inline void expect_free(const DeviceMesh& mesh, const Function& f, const std::vector<Tensor>& inputs,
                        const std::vector<Placement>& placements, Placement expected) {
  std::vector<Tensor> cut;
  for (std::size_t i = 0; i < inputs.size(); ++i)
    cut.push_back(inputs[i].defined() ? laid_out(inputs[i], Spec::of(mesh, placements[i])) : Tensor());
  const StrictCommunication strict;
  const Tensor y = f(cut);
  EXPECT_EQ(to_string(Spec::from(y).placement(0)), to_string(expected)) << describe(cut[0]) << " -> " << describe(y);
  const Tensor whole = f(inputs);
  EXPECT_TRUE(near(full_tensor(y), whole)) << describe(cut[0]) << " -> " << describe(y);
}

}  // namespace sherd::testing
