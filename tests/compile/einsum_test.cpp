// Which rows an einsum is, read off a recording, and that a captured step with einsums is the eager one.
#include "runtime/op/rows/einsum.h"

#include <gtest/gtest.h>

#include "compile/compile.h"
#include "compile/ir/text/print.h"
#include "runtime/autograd/autograd.h"
#include "runtime/autograd/slot.h"
#include "runtime/op/rows/ops.h"
#include "tests/compile/tiny_net.h"
#include "tests/support/compile_once.h"
#include "tests/support/near.h"

namespace sherd::testing {
namespace {

// What `equation` records for dense operands of these shapes.
std::string graph_of(std::string_view equation, const std::vector<Shape>& shapes) {
  CompiledStep step([&](std::span<const Tensor> in) { return std::vector<Tensor>{einsum(equation, in)}; });
  std::vector<Tensor> in;
  for (std::size_t i = 0; i < shapes.size(); ++i) in.push_back(drawn(shapes[i], "x", i));
  for (int call = 0; call < 3; ++call) step(in);
  return to_string(step.graph()->program);
}

// Its rows, "matmul sum"; views are no work and not among them.
std::string rows_of(std::string_view equation, const std::vector<Shape>& shapes) {
  const std::string text = graph_of(equation, shapes);
  std::string rows;
  for (std::size_t at = 0; (at = text.find(" = ", at)) != std::string::npos;) {
    at += 3;
    rows += (rows.empty() ? "" : " ") + text.substr(at, text.find('(', at) - at);
  }
  return rows;
}

TEST(Einsum, CommonFormsAreOneProductOfOperandsAsTheyLie) {
  const auto expect = [](std::string_view equation, const std::vector<Shape>& shapes, std::string_view rows) {
    EXPECT_EQ(rows_of(equation, shapes), rows) << equation;
  };
  expect("ij,jk->ik", {{3, 4}, {4, 5}}, "matmul");
  expect("bij,bjk->bik", {{2, 3, 4}, {2, 4, 5}}, "matmul");
  expect("...ij,jk->...ik", {{2, 2, 3, 4}, {4, 5}}, "matmul");
  expect("...d,ed->...e", {{2, 3, 4}, {5, 4}}, "linear");
  expect("ed,...d->...e", {{5, 4}, {2, 3, 4}}, "linear");
  expect("ij,jk->ki", {{3, 4}, {4, 5}}, "linear");
  expect("bhqd,bhkd->bhqk", {{2, 2, 3, 4}, {2, 2, 5, 4}}, "matmul");
  expect("bqhd,bkhd->bhqk", {{2, 3, 2, 4}, {2, 5, 2, 4}}, "matmul");
  expect("bhqk,bkhd->bqhd", {{2, 2, 3, 5}, {2, 5, 2, 4}}, "matmul");
  expect("btd,dhk->bthk", {{2, 3, 4}, {4, 2, 3}}, "matmul");
  expect("bthk,hkd->btd", {{2, 3, 2, 3}, {2, 3, 4}}, "matmul");
  expect("oi,bit->bot", {{5, 3}, {2, 3, 4}}, "linear");
  expect("bi,bj->bij", {{2, 3}, {2, 4}}, "mul");
  expect("bi,bi->b", {{2, 3}, {2, 3}}, "mul sum");
}

TEST(Einsum, ThePairThatSavesMostMemoryComesFirst) {
  EXPECT_EQ(rows_of("ij,jk,kl->il", {{2, 3}, {3, 40}, {40, 5}}), "linear linear");
  EXPECT_NE(graph_of("ij,jk,kl->il", {{2, 3}, {3, 40}, {40, 5}}).find(" f32[5,3] = linear"), std::string::npos);
  EXPECT_NE(graph_of("ij,jk,kl->il", {{2, 40}, {40, 3}, {3, 5}}).find(" f32[2,3] = matmul"), std::string::npos);
  // The first two share nothing.
  EXPECT_EQ(rows_of("i,j,ij->", {{30}, {40}, {30, 40}}), "linear mul sum");
}

TEST(Einsum, ACapturedStepIsBitwiseTheEagerOne) {
  struct Net {
    Slot q{"q", true}, k{"k", true}, out{"out", true};
    Net() {
      q.set(drawn({6, 2, 4}, "q"));
      k.set(drawn({6, 2, 4}, "k"));
      out.set(drawn({2, 4, 6}, "out"));
    }
    Tensor train(const Tensor& x) {  // x [B, T, D]
      const Tensor heads = einsum("btd,dhk->bthk", x, q.value());
      const Tensor scores = softmax(einsum("bqhk,bshk->bhqs", heads, einsum("btd,dhk->bthk", x, k.value())), -1);
      const Tensor mixed = einsum("bhqs,bshk->bqhk", scores, heads);
      const Tensor y = einsum("bthk,hkd->btd", mixed, out.value());
      Tensor loss = einsum("btd,btd->", y, x) + einsum("bhtt->", scores);
      backward(loss);
      GradMode off(false);
      for (Slot* slot : {&q, &k, &out}) {
        slot->set(slot->value() - slot->grad() * 0.01);
        slot->clear_grad();
      }
      return loss.detach();
    }
  };
  Net eager, captured;
  auto step = compile_once([&](const Tensor& x) { return captured.train(x); });
  for (std::uint64_t i = 0; i < 5; ++i) {
    const Tensor x = drawn({2, 5, 6}, "x", i);
    EXPECT_TRUE(same_bits(step(x), eager.train(x))) << step.why();
    EXPECT_TRUE(same_bits(captured.q.value(), eager.q.value()));
    EXPECT_TRUE(same_bits(captured.out.value(), eager.out.value()));
  }
  EXPECT_EQ(step.mode(), CompiledStep::Mode::replay) << step.why();
}

}  // namespace
}  // namespace sherd::testing
