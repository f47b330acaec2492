// Calls that backward runs again. Oracle: the same calls outside of a segment, bit for bit; how often rows run, counted
// in a trace; the bytes of the accounting.
#include "runtime/autograd/segment.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>

#include "runtime/autograd/autograd.h"
#include "runtime/autograd/saved_policy.h"
#include "runtime/autograd/slot.h"
#include "runtime/exec/trace.h"
#include "runtime/op/core/tape_modes.h"
#include "runtime/op/rows/attention_attrs.h"
#include "runtime/op/rows/ops.h"
#include "tests/support/expect_error.h"
#include "tests/support/near.h"
#include "tests/support/op_cases.h"
#include "tests/support/op_trap.h"

namespace sherd::testing {
namespace {

/// The same for every row but those listed.
struct FixedSaves final : SegmentPolicy {
  explicit FixedSaves(Saves others, std::vector<const Op*> listed = {}, Saves of_listed = Saves::results)
      : others_(others), of_listed_(of_listed), listed_(std::move(listed)) {}
  Saves saves(const Op& row) const override {
    return std::ranges::find(listed_, &row) != listed_.end() ? of_listed_ : others_;
  }

 private:
  Saves others_, of_listed_;
  std::vector<const Op*> listed_;
};

class SegmentTest : public ::testing::Test {
 protected:
  // Garbage where memory was given back: a value that was let go too early does not pass by luck.
  void SetUp() override { RankContext::current().allocator().set_poison(true); }
  void TearDown() override { RankContext::current().allocator().set_poison(false); }

  using Function = std::function<Tensor(const std::vector<Tensor>&)>;
  /// What a pass gave and did.
  struct Pass {
    std::vector<Tensor> gradients{};          // of the inputs that are floats; the last one's is that of a factor
    std::int64_t kept_bytes = 0;              // by the tape and the result
    std::map<std::string_view, int> calls{};  // of each row, in backward
  };

  static std::int64_t activation_bytes() {
    return RankContext::current().allocator().accounting().current(MemoryCategory::activations);
  }

  // d/dw of f(x) * w is f(x) as backward has it.
  static Pass run(const Function& f, const std::vector<Tensor>& inputs, const SegmentPolicy* policy, int passes = 1,
                  std::size_t max_spans = 1 << 10) {
    std::deque<Slot> slots;
    const auto slot_of = [&slots](const Tensor& value) -> Slot& {
      Slot& slot = slots.emplace_back("x", true);
      slot.set(value);
      return slot;
    };
    std::vector<Tensor> in;
    for (const Tensor& x : inputs) in.push_back(x.defined() && is_floating(x.dtype()) ? slot_of(x).value() : x);
    const std::int64_t before = activation_bytes();
    Tensor y;
    {
      const std::optional<SegmentScope> scope =
          policy ? std::optional<SegmentScope>(std::in_place, *policy) : std::nullopt;
      y = f(in);
    }
    Pass pass;
    pass.kept_bytes = activation_bytes() - before;
    const Tensor product = mul(y, slot_of(ones(y.shape(), y.dtype())).value());
    y = Tensor();
    Trace trace(max_spans);  // writes all of its pages at once
    {
      const Trace::Recording recording(trace);
      for (int i = 0; i < passes; ++i)
        backward(product, {.grad = ones(product.shape(), product.dtype()), .retain_graph = i + 1 < passes});
    }
    for (const Span& span : trace.spans())
      if (span.kind == SpanKind::op) ++pass.calls[span.name];
    for (const Slot& slot : slots) pass.gradients.push_back(slot.grad());
    return pass;
  }

  static void expect_same(const Pass& actual, const Pass& expected) {
    ASSERT_EQ(actual.gradients.size(), expected.gradients.size());
    for (std::size_t i = 0; i < actual.gradients.size(); ++i) {
      ASSERT_EQ(actual.gradients[i].defined(), expected.gradients[i].defined()) << "gradient " << i;
      if (expected.gradients[i].defined()) {
        EXPECT_TRUE(same_bits(actual.gradients[i], expected.gradients[i])) << "gradient " << i;
      }
    }
  }

  const FixedSaves nothing_{Saves::nothing}, needs_{Saves::needs}, results_{Saves::results};
};

TEST_F(SegmentTest, GradientsOfEveryRowAreThoseOfOutside) {
  int rows = 0;
  for (const OpCase& c : op_cases()) {
    const Op& op = find_op(c.op);
    if (!op.vjp || op.traits.collective || c.large) continue;
    // Results of other calls go in and out, so that nothing the vjp reads comes from outside of the segment.
    const Function f = [&](const std::vector<Tensor>& inputs) {
      std::vector<Tensor> in;
      for (const Tensor& x : inputs) in.push_back(x.defined() && is_floating(x.dtype()) ? neg(neg(x)) : x);
      return neg(call_op(op, in, c.attrs)[0]);
    };
    for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
      if (dtype == DType::bf16 && c.floats_only_f64_f32) continue;
      SCOPED_TRACE(fmt::format("{} {} in {}", c.op, c.name, name(dtype)));
      const std::vector<Tensor> inputs = inputs_of(c, dtype);
      if (std::ranges::none_of(inputs, [](const Tensor& x) { return x.defined() && is_floating(x.dtype()); })) continue;
      std::vector<Tensor> held = inputs;
      if (const GradMode off(false); !is_floating(call_op(op, held, c.attrs)[0].dtype())) continue;
      ++rows;
      const Pass outside = run(f, inputs, nullptr);
      for (const FixedSaves* policy : {&nothing_, &needs_, &results_}) expect_same(run(f, inputs, policy), outside);
      expect_same(run(f, inputs, &nothing_, 2), run(f, inputs, nullptr, 2));
    }
  }
  EXPECT_GT(rows, 200);
}

// Three products; the diamond's second side reads what the first has read.
Tensor diamond(const std::vector<Tensor>& in) {
  Tensor a = linear(in[0], in[1]);
  Tensor h = gelu(a);
  Tensor b = linear(h, in[2]);
  Tensor c = linear(add(std::move(b), std::move(h)), in[2]);
  return add(std::move(c), std::move(a));
}
std::vector<Tensor> diamond_inputs() {
  return {draw(normal({6, 8}), DType::f32, 1), draw(normal({8, 8}), DType::f32, 2),
          draw(normal({8, 8}), DType::f32, 3)};
}

// Each tensor has 192 bytes. Outside the tape keeps a and the sum of b and h.
TEST_F(SegmentTest, ExpensiveRowsRunAtMostOnceAndCheapOnesAtMostTwice) {
  const Pass outside = run(diamond, diamond_inputs(), nullptr), inside = run(diamond, diamond_inputs(), &nothing_);
  expect_same(inside, outside);
  EXPECT_EQ(outside.calls.at("linear_weight_grad"), 3);
  EXPECT_EQ(inside.calls.at("linear_weight_grad"), 3);
  EXPECT_FALSE(outside.calls.contains("linear"));
  EXPECT_EQ(inside.calls.at("linear"), 2) << "the last product is not needed again";
  EXPECT_LE(inside.calls.at("gelu"), 2);
  EXPECT_EQ(outside.calls.at("gelu"), 1);
  EXPECT_EQ(inside.kept_bytes, 192) << "the result; the inputs are there anyway";
  EXPECT_EQ(outside.kept_bytes, 3 * 192);
}

// What comes of the norm is asked for three times: by mul's vjp for each factor, by the second product's for the norm
// itself. Its second run gives the last two what they read, and the first product's vjp as well.
TEST_F(SegmentTest, ACheapRowOfManyReadersRunsAtMostTwice) {
  const Function f = [](const std::vector<Tensor>& in) {
    const Tensor n = rms_norm(in[0], in[3]);
    return mul(gelu(linear(n, in[1])), linear(n, in[2]));
  };
  std::vector<Tensor> inputs = diamond_inputs();
  inputs.push_back(draw(normal({8}), DType::f32, 4));
  const Pass outside = run(f, inputs, nullptr), inside = run(f, inputs, &nothing_);
  expect_same(inside, outside);
  EXPECT_EQ(inside.calls.at("linear"), 2);
  EXPECT_LE(inside.calls.at("rms_norm"), 2);
  EXPECT_LE(inside.calls.at("gelu"), 2);
}

// The norms' own vjps read what the products gave, whether or not the attention's inputs are kept: the products run
// again, once, unless the norms are kept as well.
TEST_F(SegmentTest, NormsBetweenProductsAndAKeptRow) {
  std::vector<Tensor> inputs{draw(normal({2, 2, 5, 4}), DType::f32, 1)};
  for (const std::uint64_t seed : {2, 3, 4}) inputs.push_back(draw(normal({4, 4}), DType::f32, seed));
  inputs.push_back(draw(normal({4}), DType::f32, 5));
  const Function f = [](const std::vector<Tensor>& in) {
    Tensor attention_in[] = {rms_norm(linear(in[0], in[1]), in[4]), rms_norm(linear(in[0], in[2]), in[4]),
                             linear(in[0], in[3])};
    return call_op(op::scaled_dot_product_attention, attention_in, AttentionAttrs{0.5, true})[0];
  };
  const FixedSaves attention(Saves::nothing, {&op::scaled_dot_product_attention}),
      norms_too(Saves::nothing, {&op::scaled_dot_product_attention, &op::rms_norm});
  const Pass outside = run(f, inputs, nullptr), inside = run(f, inputs, &attention), kept = run(f, inputs, &norms_too);
  expect_same(inside, outside);
  expect_same(kept, outside);
  EXPECT_FALSE(outside.calls.contains("linear"));
  EXPECT_EQ(inside.calls.at("linear"), 2) << "of q and k; v is kept";
  EXPECT_EQ(inside.calls.at("rms_norm"), 2);
  EXPECT_FALSE(kept.calls.contains("linear"));
  EXPECT_FALSE(kept.calls.contains("rms_norm"));
  EXPECT_LT(inside.kept_bytes, kept.kept_bytes);
}

TEST_F(SegmentTest, RowsWhoseResultsAreKeptDoNotRunAgain) {
  const FixedSaves selective(Saves::nothing, {&op::linear});
  const Pass outside = run(diamond, diamond_inputs(), nullptr), inside = run(diamond, diamond_inputs(), &selective);
  expect_same(inside, outside);
  EXPECT_FALSE(inside.calls.contains("linear"));
  const Pass kept = run(diamond, diamond_inputs(), &needs_);
  expect_same(kept, outside);
  EXPECT_FALSE(kept.calls.contains("linear"));
  EXPECT_EQ(kept.kept_bytes, outside.kept_bytes);
}

// A segment inside of another is a part of it that keeps more, or less.
TEST_F(SegmentTest, InnerScopesBringAnotherPolicyOnly) {
  const Function f = [this](const std::vector<Tensor>& in) {
    Tensor a = linear(in[0], in[1]);
    {
      const std::uint64_t outer = tape_modes().segment;
      const SegmentScope inner(needs_);
      if (outer) { EXPECT_EQ(tape_modes().segment, outer); }
      a = linear(sin(std::move(a)), in[2]);
    }
    return linear(square(std::move(a)), in[1]);
  };
  const Pass outside = run(f, diamond_inputs(), nullptr), inside = run(f, diamond_inputs(), &nothing_);
  expect_same(inside, outside);
  EXPECT_EQ(inside.calls.at("linear"), 1) << "the second; what the first gave is kept for the sine";
  EXPECT_EQ(tape_modes().segment, 0u);
  EXPECT_EQ(tape_modes().segment_policy, nullptr);
}

TEST_F(SegmentTest, EveryOutputOfARowCanBeHadAgain) {
  std::vector<Tensor> inputs;
  for (const std::uint64_t seed : {1, 2, 3}) inputs.push_back(draw(normal({2, 2, 5, 4}), DType::f32, seed));
  const Function f = [](const std::vector<Tensor>& in) {
    Tensor attention_in[] = {sin(in[0]), sin(in[1]), sin(in[2])};
    Tensors out = call_op(op::scaled_dot_product_attention, attention_in, AttentionAttrs{0.5, true});
    return add(mul(out[0], out[0]), unsqueeze(mul(out[1], out[1]), -1));
  };
  expect_same(run(f, inputs, &nothing_), run(f, inputs, nullptr));
}

// A reader outside keeps what it reads: the segment before does not start while that of after runs.
TEST_F(SegmentTest, SegmentsRunAgainOneAtATime) {
  Slot x("x", true), w("w", true);
  x.set(draw(normal({4, 8}), DType::f32, 1));
  w.set(draw(normal({8}), DType::f32, 2));
  Trace trace(1000);
  int sines_before = -1;
  const auto sines = [&trace] {
    return static_cast<int>(std::ranges::count(trace.spans(), std::string_view("sin"), &Span::name));
  };
  Tensor between, y;
  {
    const SegmentScope first(nothing_);
    between = rms_norm(sin(sin(x.value())), w.value());
  }
  register_grad_hook(between, [&](const Tensor&) { return sines_before = sines(), Tensor(); });
  {
    const SegmentScope second(nothing_);
    y = sum(square(exp(std::move(between))));
  }
  const Trace::Recording recording(trace);
  backward(y);
  EXPECT_EQ(sines_before, 0);
  EXPECT_EQ(sines(), 2);
}

TEST_F(SegmentTest, ChainsOfAnyLength) {
  const auto chain = [](auto row) {
    return [row](const std::vector<Tensor>& in) {
      Tensor x = in[0];
      for (int i = 0; i < 10'000; ++i) x = row(std::move(x));
      return x;
    };
  };
  constexpr std::size_t kSpans = 1 << 16;
  const std::vector<Tensor> inputs{draw(unit({3}), DType::f32, 1)};
  const Function sines = chain([](Tensor x) { return sin(std::move(x)); });
  const Function cheap = chain([](Tensor x) { return silu(std::move(x)); });
  const Pass of_sines = run(sines, inputs, &nothing_, 1, kSpans), of_cheap = run(cheap, inputs, &nothing_, 1, kSpans);
  expect_same(of_sines, run(sines, inputs, nullptr, 1, kSpans));
  expect_same(of_cheap, run(cheap, inputs, nullptr, 1, kSpans));
  EXPECT_EQ(of_sines.calls.at("sin"), 9'999) << "the last one's result is the segment's";
  EXPECT_LE(of_cheap.calls.at("silu"), 20'000);
}

TEST_F(SegmentTest, AValueThatWasWrittenIsKept) {
  const Function f = [](const std::vector<Tensor>& in) {
    Tensor x = sin(in[0]);
    const Tensor before = square(x);
    fill_into(x.detach(), 0.5);
    return add(mul(square(x), x), before);
  };
  const std::vector<Tensor> inputs{draw(normal({5}), DType::f32, 1)};
  const Pass inside = run(f, inputs, &nothing_);
  const Tensor sines = sin(inputs[0]), sum = add(full({5}, 0.5 * 0.5 * 0.5), square(sines));
  EXPECT_TRUE(same_bits(inside.gradients.back(), sum)) << "forward, and backward's factor";
  // d/dx of (x^2 x) where x was written, of x^2 where it was not: each as the call read it.
  const Tensor slope = add(full({5}, 3 * 0.5 * 0.5), mul(sines, 2.0));
  EXPECT_TRUE(near(inside.gradients[0], mul(slope, cos(inputs[0]))));
}

TEST_F(SegmentTest, AWriteToWhatCameFromOutsideIsAnError) {
  Slot x("x", true);
  x.set(full({3}, 0.5));
  Tensor y;
  {
    const SegmentScope scope(nothing_);
    y = sum(square(add(x.value(), 1.0)));
  }
  x.assign(full({3}, 1.0));
  expect_error([&] { backward(y); }, {"has been written since"});
}

TEST_F(SegmentTest, ASecondPassNeedsTheGraph) {
  Slot x("x", true);
  x.set(full({3}, 0.5));
  Tensor y;
  {
    const SegmentScope scope(nothing_);
    y = sum(square(sin(x.value())));
  }
  backward(y);
  expect_error([&] { backward(y); }, {"a second time"});
}

// The product is the second of three calls that run again for the square's vjp.
TEST_F(SegmentTest, AnExceptionInTheMiddleOfAPlanLeavesNothingBehind) {
  RankContext& context = RankContext::current();
  Slot x("x", true), w("w", true);
  x.set(draw(normal({4, 8}), DType::f32, 1));
  w.set(draw(normal({8, 8}), DType::f32, 2));
  const auto loss = [&] { return sum(square(gelu(linear(sin(x.value()), w.value())))); };
  const auto recomputed = [&] {
    const std::string* const outer = std::exchange(context.module_path, context.intern("blocks.3"));
    Tensor y;
    {
      const SegmentScope scope(nothing_);
      y = loss();
    }
    context.module_path = outer;
    return y;
  };
  const auto gradients = [&](const Tensor& y) {
    x.clear_grad(), w.clear_grad();
    backward(y);
    return std::pair(x.grad(), w.grad());
  };
  const auto expected = gradients(loss());
  x.clear_grad(), w.clear_grad();
  const Tensor y = recomputed();
  const std::int64_t before = activation_bytes();
  const std::string* const path = context.module_path;
  {
    const OpTrap trap(std::string_view("linear"));
    expect_error([&] { backward(y, {.retain_graph = true}); }, {"the trap", "linear", "blocks.3"});
  }
  EXPECT_EQ(context.module_path, path);
  EXPECT_EQ(tape_modes().segment, 0u);
  EXPECT_FALSE(in_backward());
  EXPECT_EQ(activation_bytes(), before) << "what had run again by then";
  for (const Tensor& root : {y, recomputed()}) {
    const auto [of_x, of_w] = gradients(root);
    EXPECT_TRUE(same_bits(of_x, expected.first));
    EXPECT_TRUE(same_bits(of_w, expected.second));
  }
}

TEST_F(SegmentTest, OnlyWhatThePassReadsRunsAgain) {
  Slot x("x", true);
  x.set(draw(normal({4, 4}), DType::f32, 1));
  Tensor left, right;
  {
    const SegmentScope scope(nothing_);
    const Tensor h = sin(x.value());
    left = sum(square(h));
    right = sum(exp(h));
  }
  Trace trace(1000);
  {
    const Trace::Recording recording(trace);
    backward(left);
  }
  EXPECT_EQ(std::ranges::count(trace.spans(), std::string_view("exp"), &Span::name), 0);
  EXPECT_TRUE(near(x.grad(), mul(mul(sin(x.value()), 2.0), cos(x.value())).detach()));
}

TEST_F(SegmentTest, EffectsAreRefusedByName) {
  Slot x("x", true);
  x.set(full({3}, 0.5));
  const std::shared_ptr<ProcessGroup> group = make_single_group();
  RankContext& context = RankContext::current();
  const std::string* const outer = std::exchange(context.module_path, context.intern("blocks.3"));
  {
    const SegmentScope scope(nothing_);
    expect_error([&] { all_reduce(mul(x.value(), 2), *group); }, {"all_reduce in a recomputed segment", "blocks.3"});
    expect_error([&] { sum(x.value()).item<float>(); }, {"item() on f32[]", "\"blocks.3\"", "recomputed"});
    expect_error([&] { x.value().to_vector<float>(); }, {"to_vector() on f32[3]", "\"blocks.3\""});
    {
      const OutsideSegment outside;
      EXPECT_EQ(sum(x.value()).item<float>(), 1.5f);
    }
    EXPECT_NE(tape_modes().segment, 0u);
    const GradMode off(false);  // what is not recorded does not run again
    EXPECT_EQ(sum(x.value()).item<float>(), 1.5f);
    all_reduce(mul(x.value(), 2), *group);
  }
  context.module_path = outer;
}

/// Keeps copies elsewhere; counts those that are there.
class Copies final : public SavedPolicy {
 public:
  std::unique_ptr<Packed> pack(const Tensor& tensor) override { return std::make_unique<Copy>(*this, tensor); }
  int packed = 0, unpacked = 0, alive = 0;

 private:
  struct Copy final : SavedPolicy::Packed {
    Copy(Copies& of, const Tensor& t) : all(of), meta(t.meta()), bytes(static_cast<std::size_t>(t.storage()->bytes())) {
      ++all.packed, ++all.alive;
      std::memcpy(bytes.data(), t.storage()->read(), bytes.size());
    }
    ~Copy() override { --all.alive; }
    Tensor unpack() override {
      ++all.unpacked;
      const Ref<Storage> again =
          Storage::allocate(static_cast<std::int64_t>(bytes.size()), MemoryCategory::activations);
      std::memcpy(again->write(), bytes.data(), bytes.size());
      return Tensor::over(again, meta.shape, meta.strides, meta.offset, meta.dtype);
    }
    Copies& all;
    TensorMeta meta;
    std::vector<std::byte> bytes;
  };
};

TEST_F(SegmentTest, PackedBytesComeBack) {
  const std::vector<Tensor> inputs = diamond_inputs();
  const Pass expected = run(diamond, inputs, nullptr);
  for (const SegmentPolicy* policy :
       {static_cast<const SegmentPolicy*>(nullptr), static_cast<const SegmentPolicy*>(&nothing_)}) {
    Copies copies;
    const Function packed = [&copies](const std::vector<Tensor>& in) {
      const SavedPolicy::Scope scope(copies);
      return diamond(in);
    };
    const Pass pass = run(packed, inputs, policy);
    expect_same(pass, expected);
    EXPECT_EQ(pass.kept_bytes, 192) << "the result";
    EXPECT_GT(copies.packed, 0);
    EXPECT_EQ(copies.unpacked, copies.packed);
    EXPECT_EQ(copies.alive, 0);
    expect_same(run(packed, inputs, policy, 2), run(diamond, inputs, nullptr, 2));
    EXPECT_EQ(tape_modes().saved_policy, nullptr);
  }
}

TEST_F(SegmentTest, PackedBytesThatNobodyAsksForGoWithTheTape) {
  Copies copies;
  {
    Slot x("x", true);
    x.set(full({3}, 0.5));
    const SavedPolicy::Scope scope(copies);
    const Tensor y = sum(square(sin(x.value())));
    EXPECT_GT(copies.alive, 0);
  }
  EXPECT_EQ(copies.alive, 0);
  EXPECT_EQ(copies.unpacked, 0);
}

}  // namespace
}  // namespace sherd::testing
