// No row runs on bytes that are not there: every row of the table with an empty input, with a released one, with one of
// another rank's thread or of another device; as a call, with destinations, and in backward. Oracle: the columns of the
// row say which calls are right, all others are an Error that names what is missing. A fault ends the program.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>

#include "runtime/autograd/autograd.h"
#include "runtime/autograd/slot.h"
#include "runtime/exec/context.h"
#include "runtime/op/rows/ops.h"
#include "tests/support/bad_inputs.h"
#include "tests/support/expect_error.h"
#include "tests/support/near.h"

namespace sherd::testing {
namespace {

TEST(NoBytes, EveryRowRefusesAnInputThatIsEmptyOrReleased) {
  AwayOwner owner;
  int count = 0;
  each_bad_input([&](const BadInput& bad) {
    ++count;
    expect_refused(bad, [&] {
      std::vector<Tensor> in = bad.inputs(owner);
      call_op(bad.op, in, bad.test_case.attrs);
    });
  });
  EXPECT_GT(count, 500);
}

// The inputs of a call that lands somewhere, and the place itself.
TEST(NoBytes, EveryRowRefusesADestinationThatIsEmptyOrReleased) {
  AwayOwner owner;
  for (const OpCase& c : op_cases()) {
    const Op& op = find_op(c.op);
    if (c.large || op.traits.effect || op.mutated) continue;
    std::vector<Tensor> in = inputs_of(c, DType::f32);
    Tensors out = call_op(op, in, c.attrs);
    if (out.size() != 1) continue;
    Tensor target = owned_copy(out[0], owner);
    target.storage()->release_data();
    for (const bool accumulate : {false, true}) {
      if (accumulate && !is_floating(target.dtype())) continue;
      const auto into = [&](const Tensor& to) {
        std::vector<Tensor> again = inputs_of(c, DType::f32);
        call_op_into(op, again, c.attrs, to, accumulate);
      };
      SCOPED_TRACE(c.op + " " + c.name);
      expect_error([&] { into(target); }, {"is released"});
      expect_error([&] { into(Tensor()); }, {"is empty"});
    }
  }
}

// What a vjp reads has gone since, and its owner does not bring it back: an Error, or a vjp that reads nothing of it.
TEST(NoBytes, EveryBackwardRefusesWhatHasGoneSinceForward) {
  AwayOwner owner;
  int refused = 0;
  for (const OpCase& c : op_cases()) {
    const Op& op = find_op(c.op);
    if (c.large || !op.vjp) continue;
    const std::vector<Tensor> plain = inputs_of(c, DType::f32);
    for (std::size_t gone = 0; gone < plain.size(); ++gone) {
      if (!plain[gone].defined()) continue;
      SCOPED_TRACE(fmt::format("{} {}, input {}", c.op, c.name, gone));
      std::vector<std::unique_ptr<Slot>> slots;
      std::vector<Tensor> in;
      for (std::size_t i = 0; i < plain.size(); ++i) {
        const Tensor t = i == gone ? owned_copy(plain[i], owner) : plain[i];
        if (!t.defined() || !is_floating(t.dtype())) {
          in.push_back(t);
          continue;
        }
        slots.push_back(std::make_unique<Slot>("x", true));
        in.push_back(slots.back()->attach(t));
      }
      const Tensor released = in[gone].detach();
      const Tensors out = call_op(op, in, c.attrs);
      const auto root = std::ranges::find_if(out, [](const Tensor& t) { return t.requires_grad(); });
      if (root == out.end()) continue;
      released.storage()->release_data();
      try {
        backward(*root, {.grad = ones(root->shape(), root->dtype())});
      } catch (const Error& error) {
        ++refused;
        EXPECT_NE(std::string_view(error.what()).find("is released"), std::string_view::npos) << error.what();
      }
    }
  }
  EXPECT_GT(refused, 100);
}

// Bytes are bytes, whoever has made them: such a call gives the same values or an Error.
TEST(NoBytes, InputsOfAnotherRanksThreadAreReadOrRefused) {
  std::vector<const OpCase*> cases;
  for (const OpCase& c : op_cases())
    if (const Op& op = find_op(c.op); !c.large && !op.traits.effect && !op.mutated && !op.traits.collective)
      cases.push_back(&c);
  std::vector<std::vector<Tensor>> theirs;
  const OtherRank other([&] {
    for (const OpCase* c : cases) theirs.push_back(inputs_of(*c, DType::f32));
  });
  for (std::size_t k = 0; k < cases.size(); ++k) {
    const OpCase& c = *cases[k];
    const Op& op = find_op(c.op);
    std::vector<Tensor> ours = inputs_of(c, DType::f32);
    const Tensors expected = call_op(op, ours, c.attrs);
    try {
      std::vector<Tensor> in = theirs[k];
      const Tensors out = call_op(op, in, c.attrs);
      for (std::size_t i = 0; i < out.size(); ++i) EXPECT_TRUE(same_bits(out[i], expected[i])) << c.op << " " << c.name;
    } catch (const Error&) {}
  }
  theirs.clear();
}

// One input on meta beside others with bytes: shapes only, or an Error.
TEST(NoBytes, AnInputOfAnotherDeviceIsAShapeOrRefused) {
  for (const OpCase& c : op_cases()) {
    const Op& op = find_op(c.op);
    if (c.large) continue;
    const std::vector<Tensor> plain = inputs_of(c, DType::f32);
    for (std::size_t i = 0; i < std::min<std::size_t>(plain.size(), 8); ++i) {
      if (!plain[i].defined()) continue;
      std::vector<Tensor> in = plain;
      in[i] = Tensor::empty(plain[i].shape(), plain[i].dtype(), Device::meta());
      try {
        for (const Tensor& t : call_op(op, in, c.attrs)) EXPECT_TRUE(t.is_meta()) << c.op << " " << c.name;
      } catch (const Error&) {}
    }
  }
}

}  // namespace
}  // namespace sherd::testing
