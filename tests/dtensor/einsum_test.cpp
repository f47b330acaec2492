// einsum of distributed operands against one rank's, and that nothing moves where mathematics needs no communication:
// one letter sharded per mesh axis, whatever its role in the product and however uneven the shards are.
//
//   letter      operands that have it    others    result             gradients
//   stays       S                        R         S                  S, of the others Partial
//   is summed   S                        R         Partial            S, of the others Partial
#include "runtime/op/rows/einsum.h"

#include <gtest/gtest.h>

#include "runtime/comm/group/comm_counter.h"
#include "tests/dtensor/one_rank.h"
#include "tests/support/expect_error.h"

namespace sherd::testing {
namespace {

using Group = std::shared_ptr<ProcessGroup>;

struct Form {
  std::string_view equation;
  std::vector<Shape> shapes;
};

const Form kAttention[] = {
    {"bqhd,bkhd->bhqk", {{2, 4, 3, 5}, {2, 3, 3, 5}}},       // scores; heads inside
    {"bhqd,bhkd->bhqk", {{2, 3, 4, 5}, {2, 3, 2, 5}}},       // heads outside
    {"bhqk,bkhd->bqhd", {{2, 3, 4, 5}, {2, 5, 3, 4}}},       // values
    {"bqhgd,bkhd->bhgqk", {{2, 3, 2, 4, 3}, {2, 5, 2, 3}}},  // grouped queries
    {"btd,dhk->bthk", {{3, 2, 4}, {4, 5, 3}}},               // to heads
    {"bthk,hkd->btd", {{2, 3, 5, 4}, {5, 4, 3}}},            // from heads
};
const Form kOthers[] = {
    {"bij,bjk->bik", {{3, 4, 5}, {3, 5, 2}}},
    {"bi,bj->bij", {{3, 4}, {3, 5}}},
    {"bi,ij,bj->b", {{3, 4}, {4, 5}, {3, 5}}},
    {"aij,bji->ab", {{3, 4, 5}, {2, 5, 4}}},
    {"ij,jk->k", {{3, 4}, {4, 5}}},
    {"ibij->bj", {{3, 4, 3, 5}}},
};

std::vector<Tensor> drawn_inputs(const Form& form) {
  std::vector<Tensor> in;
  for (std::size_t i = 0; i < form.shapes.size(); ++i) in.push_back(draw(normal(form.shapes[i]), DType::f32, 41 + i));
  return in;
}

std::string labels_of(const Form& form, std::size_t operand) {
  std::string_view text = form.equation;
  for (std::size_t i = 0; i < operand; ++i) text.remove_prefix(text.find(',') + 1);
  return std::string(text.substr(0, text.find_first_of(",-")));
}

std::string output_of(const Form& form) { return std::string(form.equation.substr(form.equation.find("->") + 2)); }

// Every letter that no operand has twice.
std::string letters_of(const Form& form) {
  std::string letters;
  for (std::size_t i = 0; i < form.shapes.size(); ++i) {
    const std::string labels = labels_of(form, i);
    for (char c : labels)
      if (letters.find(c) == std::string::npos && labels.find(c) == labels.rfind(c)) letters += c;
  }
  return letters;
}

// Axis a of the mesh shards letter cuts[a]; `without` is the placement of a tensor that does not have the letter.
const Spec* layout_of(const DeviceMesh& mesh, std::string_view labels, std::string_view cuts, Placement without) {
  std::vector<Placement> placements;
  for (char c : cuts) {
    const std::size_t at = labels.find(c);
    placements.push_back(at == std::string_view::npos ? without : Shard(static_cast<int>(at)));
  }
  return Spec::of(mesh, placements);
}

// Forward and backward with these letters sharded: nothing moves, and all layouts are those of the drawing above.
void expect_nothing_moves(const DeviceMesh& mesh, const Form& form, std::string_view cuts) {
  SCOPED_TRACE(fmt::format("{} cut by {} on {}", form.equation, cuts, mesh.describe()));
  const std::vector<Tensor> in = drawn_inputs(form);
  const std::vector<Tensor> expected =
      value_and_gradients([&](const std::vector<Tensor>& t) { return einsum(form.equation, t); }, in);
  std::vector<std::unique_ptr<Slot>> slots;
  std::vector<Tensor> cut;
  for (std::size_t i = 0; i < in.size(); ++i) {
    slots.push_back(std::make_unique<Slot>("x", true));
    slots[i]->set(laid_out(in[i], layout_of(mesh, labels_of(form, i), cuts, Replicate())));
    cut.push_back(slots[i]->value());
  }
  const Tensor dy = draw(normal(expected[0].shape()), DType::f32, 77);  // the gradient that value_and_gradients uses
  std::vector<Tensor> got;
  {
    const CommCounter counter;
    const StrictCommunication strict;
    const Tensor y = einsum(form.equation, cut);
    backward(y, {.grad = laid_out(dy, layout_of(mesh, output_of(form), cuts, Replicate()))});
    got.push_back(y.detach());
    for (const auto& slot : slots) got.push_back(slot->grad());
    EXPECT_EQ(counter.total().calls, 0) << counter.describe();
  }
  for (std::size_t i = 0; i < got.size(); ++i) {
    const std::string labels = i == 0 ? output_of(form) : labels_of(form, i - 1);
    EXPECT_EQ(Spec::from(got[i]).describe(), layout_of(mesh, labels, cuts, Partial())->describe()) << "result " << i;
    EXPECT_TRUE(near(full_tensor(got[i]), expected[i])) << "result " << i;
  }
}

void expect_nothing_moves_on_any_mesh(std::span<const Form> forms) {
  for (const int ranks : {2, 3})
    run_ranks(ranks, [&](const Group& group) {
      const DeviceMesh mesh(group, "tp");
      for (const Form& form : forms)
        for (char c : letters_of(form)) expect_nothing_moves(mesh, form, std::string(1, c));
    });
  run_ranks(4, [&](const Group& group) {
    const DeviceMesh mesh(group, {{"dp", 2}, {"tp", 2}});
    for (const Form& form : forms)
      for (char dp : letters_of(form))
        for (char tp : letters_of(form)) expect_nothing_moves(mesh, form, std::string{dp, tp});
  });
}

TEST(Einsum, F131_EinsumOfAttentionShapesMovesNothingForAnyCutLetter) { expect_nothing_moves_on_any_mesh(kAttention); }

TEST(Einsum, F131_OtherFormsMoveNothingForAnyCutLetter) { expect_nothing_moves_on_any_mesh(kOthers); }

// The usual case: projections sharded by heads over one axis, by the batch over the other.
TEST(Einsum, F131_EinsumOfAttentionShapesInOneBlock) {
  run_ranks(4, [](const Group& group) {
    const DeviceMesh mesh(group, {{"dp", 2}, {"tp", 2}});
    const auto block = [](const std::vector<Tensor>& in) {
      const Tensor q = einsum("btd,dhk->bthk", in[0], in[1]), k = einsum("btd,dhk->bthk", in[0], in[2]);
      const Tensor weights = softmax(einsum("bqhk,bshk->bhqs", q, k), -1);
      return einsum("bthk,hkd->btd", einsum("bhqs,bshk->bqhk", weights, q), in[3]);
    };
    const Shape shapes[] = {{4, 3, 6}, {6, 4, 2}, {6, 4, 2}, {4, 2, 6}};
    const Spec* layouts[] = {Spec::of(mesh, {Shard(0), Replicate()}), Spec::of(mesh, {Replicate(), Shard(1)}),
                             Spec::of(mesh, {Replicate(), Shard(1)}), Spec::of(mesh, {Replicate(), Shard(0)})};
    std::vector<Tensor> in, cut;
    for (std::size_t i = 0; i < 4; ++i) {
      in.push_back(draw(normal(shapes[i]), DType::f32, 51 + i));
      cut.push_back(laid_out(in[i], layouts[i]));
    }
    const StrictCommunication strict;
    const Tensor y = block(cut);
    EXPECT_EQ(&Spec::from(y), Spec::of(mesh, {Shard(0), Partial()})) << describe(y);
    EXPECT_TRUE(near(full_tensor(y), block(in)));
  });
}

// In any layouts the numbers are those of one rank.
TEST(Einsum, F131_AnyLayoutsGiveOneRanksNumbers) {
  const Form forms[] = {{"bqhd,bkhd->bhqk", {{2, 3, 2, 3}, {2, 3, 2, 3}}}, {"btd,dhk->bthk", {{2, 3, 4}, {4, 3, 2}}}};
  on_meshes([&](const DeviceMesh& mesh) {
    for (const Form& form : forms) {
      const std::vector<Tensor> in = drawn_inputs(form);
      const Function f = [&](const std::vector<Tensor>& t) { return einsum(form.equation, t); };
      for (const Spec* a : all_layouts(mesh, {Replicate(), Partial(), Shard(0), Shard(2)}))
        for (const Spec* b : all_layouts(mesh, {Replicate(), Shard(0), Shard(1)})) expect_as_on_one_rank(f, in, {a, b});
    }
  });
}

// One operand replicated: each rank takes its shard without communication.
TEST(Einsum, F131_AWholeOperandFollowsTheCutOne) {
  run_ranks(3, [](const Group& group) {
    const DeviceMesh mesh(group);
    const Tensor q = draw(normal({2, 4, 3, 5}), DType::f32, 61), k = draw(normal({2, 6, 3, 5}), DType::f32, 62);
    const auto scores = [](const std::vector<Tensor>& in) { return einsum("bqhd,bkhd->bhqk", in); };
    expect_free(mesh, scores, {q, k}, {Shard(2), Replicate()}, Shard(1));
    expect_free(mesh, scores, {q, k}, {Replicate(), Shard(3)}, Partial());
    expect_free(mesh, scores, {q, k}, {Partial(), Replicate()}, Partial());
  });
}

TEST(Einsum, WhatMovesIsNamed) {
  run_ranks(2, [](const Group& group) {
    const DeviceMesh mesh(group);
    const Tensor a = laid_out(counting({4, 4}), Spec::of(mesh, Shard(0)));
    const Tensor b = laid_out(counting({4, 4}), Spec::of(mesh, Shard(1)));
    const StrictCommunication strict;
    expect_error([&] { einsum("ij,jk->ik", a, b); },
                 {"matmul: input", "would have to move", "\"ij,jk->ik\" of  f32[4,4]{0: dp}  f32[4,4]{1: dp}"});
    expect_error([&] { einsum("ii->i", a); }, {"would have to move", "\"ii->i\" of  f32[4,4]{0: dp}"});
  });
}

}  // namespace
}  // namespace sherd::testing
