// The complete text of a program: it reads back as the program, and any other text is an Error with line and column.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>

#include "compile/ir/analysis/meaning.h"
#include "compile/ir/analysis/order.h"
#include "compile/passes/pass.h"
#include "compile/passes/place_eager.h"
#include "compile/passes/ssa.h"
#include "runtime/exec/context.h"
#include "runtime/op/attrs/attr_text.h"
#include "runtime/op/unit/unit.h"
#include "tests/compile/mutate.h"
#include "tests/compile/recorded_step.h"
#include "tests/compile/training_step.h"
#include "tests/support/expect_error.h"

namespace sherd::testing {
namespace {

Program captured(std::span<const Tensor> arguments, const std::function<std::vector<Tensor>()>& step) {
  return lower(recorded(arguments, step));
}

Program tiny_step() {
  TinyNet net;
  const Tensor in[] = {TinyNet::x(0), TinyNet::y(0)};
  return captured(in, [&]() -> std::vector<Tensor> { return {net.train(in[0], in[1])}; });
}

Program gpt_step() {
  GptTraining training;
  const std::vector<Tensor> in = training.batch(0);
  training.step(in);
  return captured(in, [&] { return training.step(in); });
}

// Names that need quotes, views, shared storages, constants of all sizes, what is only there during the step.
Program odd_step() {
  Slot w("a \"slot\"\n", true), shadow("w.grad"), first("w"), second("w");
  w.set(drawn({2, 3}, "w"));
  shadow.set(drawn({3}, "s"));
  const Tensor arena = drawn({8}, "arena");
  first.set(narrow(arena, 0, 0, 3));
  second.set(narrow(arena, 0, 4, 3));
  const Tensor large = drawn({100}, "large"), wide = drawn({4, 6}, "x");
  const Tensor x[] = {narrow(wide, 1, 0, 3), narrow(wide, 1, 3, 3)};
  RankContext& context = RankContext::current();
  const std::string* outer = context.module_path;
  Program program = captured(x, [&]() -> std::vector<Tensor> {
    context.module_path = context.intern("blocks 0");
    const Tensor y = linear(x[0], w.value()) + linear(x[1], w.value());
    context.module_path = outer;
    backward(sum(y));
    Slot local("local");
    local.set(shadow.value() * Tensor::scalar(3));
    shadow.set(local.value() + first.value() * second.value());
    return {transpose(y.detach(), 0, 1), Tensor(), narrow(large, 0, 3, 2) + 1.0, x[1]};
  });
  context.module_path = outer;
  return program;
}

// With scratch as values, and in the form that has waits.
Program passed_step() {
  Program program = gpt_step();
  run_passes(program, standard_passes());
  return program;
}

TEST(ProgramText, ReadsBackAsTheProgram) {
  for (const Program& program : {tiny_step(), gpt_step(), odd_step(), passed_step(), Program()}) {
    const std::string written = text(program);
    const Program read = parse(written);
    EXPECT_TRUE(read == program) << written;
    EXPECT_EQ(text(read), written);
    EXPECT_EQ(to_string(read), to_string(program));
  }
}

TEST(ProgramText, HasAllThatAProgramConsistsOf) {
  const RankScope rank;  // where nobody has added hooks
  Slot w("w", true), lr("lr");
  w.set(drawn({2, 3}, "w"));
  lr.set(Tensor::scalar(0.5));
  const Tensor x[] = {drawn({4, 3}, "x")};
  const Program program = captured(x, [&]() -> std::vector<Tensor> {
    const Tensor loss = sum(linear(x[0], w.value()));
    backward(loss);
    GradMode off(false);
    w.set(w.value() - w.grad() * lr.value() * Tensor::scalar(2));
    return {loss};
  });
  EXPECT_EQ(text(program),
            "program 1\n"
            "setting \"gradient hooks added\" \"0\"\n"
            "constant bytes 00000040\n"
            "argument f32[4,3]\n"
            "slot w requires_grad leaves_requires_grad had_value\n"
            "slot lr had_value\n"
            "binding @w in @w f32[2,3]\n"
            "binding @lr in @lr f32[]\n"
            "value $0 f32[4,3] activations\n"
            "value @w f32[2,3] activations\n"
            "value %0 f32[4,2] activations\n"
            "value %1 f32[] activations\n"
            "value %2 f32[] activations\n"
            "value %3 f32[2,3] gradients\n"
            "value @lr f32[] activations\n"
            "value %4 f32[2,3] activations\n"
            "value #0 f32[] activations\n"
            "nodes\n"
            "%0 f32[4,2] = linear($0, @w, none) numbers 0,0,0,0\n"
            "%1 f32[] = sum(%0) {dims=3 keep=false} frees %0 numbers 1,0\n"
            "%2 f32[] = full() {shape=[] value=1 dtype=f32} numbers 0\n"
            "%3 f32[2,3] = linear_weight_grad(%2:f32[4,2]s[0,0], $0) frees %2 numbers 1,0,0 in backward\n"
            "%4 f32[2,3] = mul(%3, @lr) numbers 1,0,0\n"
            "%4 = mul(%4, #0) numbers 1,0,1\n"
            "%4 = sub(@w, %4) numbers 0,2,2\n"
            "return %1\n"
            "@w = %4\n"
            "@w.grad = %3\n"
            "end\n");
}

TEST(ProgramText, EveryFieldCounts) {
  const Program program = odd_step();
  const auto differs = [&](const std::function<void(Program&)>& change) {
    Program other = program;
    change(other);
    EXPECT_FALSE(other == program);
    EXPECT_NE(text(other), text(program));
    EXPECT_TRUE(parse(text(other)) == other) << text(other);
  };
  differs([](Program& p) { p.grad_enabled = false; });
  differs([](Program& p) { p.values[0].bytes += 8; });
  differs([](Program& p) { p.values[0].category = MemoryCategory::workspace; });
  differs([](Program& p) { p.values[1].device = Device::cuda(1); });
  differs([](Program& p) { p.values.back().home.offset = 1; });
  differs([](Program& p) { p.values[0].is_absent = true; });
  differs([](Program& p) { p.nodes[0].phase = StepPhase::optimizer; });
  differs([](Program& p) { p.nodes[0].module = kNoModule; });
  differs([](Program& p) { p.nodes[0].accumulate = true; });
  differs([](Program& p) { p.nodes[0].num_mutated = 2; });
  differs([](Program& p) { p.nodes[0].frees = {static_cast<ValueId>(p.values.size()) - 1}; });
  differs([](Program& p) { p.nodes[0].restores = p.nodes[0].releases = {0}; });
  differs([](Program& p) { p.nodes[0].scratch = 1; });
  differs([](Program& p) { p.nodes[0].numbers = {0, 3, 12}; });
  differs([](Program& p) { p.values[0].place = static_cast<ValueId>(p.values.size()) - 1; });
  differs([](Program& p) { p.has_waits = true; });
  differs([](Program& p) { p.nodes[0].op = &op::matmul; });
  differs([](Program& p) { p.nodes[0].in[0].strides = {1, 4}; });
  differs([](Program& p) { p.arguments[1].shift = 4; });
  differs([](Program& p) { p.arguments[0].tensor.device = Device::cuda(0); });
  differs([](Program& p) { p.arguments[0].tensor.global = {8, 3}; });
  differs([](Program& p) {
    p.layouts = {"{0: dp} on mesh(dp=2)"};
    p.arguments[0].tensor.layout = 0;
    p.results[0].layout = 0;
    p.updates[0].result.shape = {6};
  });
  for (const char* name : {"x", "x.grad", "with space", "\"", "\\", "\x01\xff", ""})
    differs([&](Program& p) { p.slots[0].name = name; });
  differs([](Program& p) { p.slots[0].requires_grad = !p.slots[0].requires_grad; });
  differs([](Program& p) { p.slots[0].leaves_requires_grad = !p.slots[0].leaves_requires_grad; });
  differs([](Program& p) { p.slots[0].had_value = !p.slots[0].had_value; });
  differs([](Program& p) { p.slots[0].had_grad = !p.slots[0].had_grad; });
  differs([](Program& p) { p.slots[0].drops_grad_first = true; });
  differs([](Program& p) { p.slots[0].is_local = !p.slots[0].is_local; });
  differs([](Program& p) { p.bindings[0].held_by_slot_only = true; });
  differs([](Program& p) { p.settings.push_back({"blocks.0", "divides by 4"}); });
  differs([](Program& p) { p.units.emplace_back("blocks.0 full"); });
  differs([](Program& p) { p.constants[0] = {}; });
  differs([](Program& p) { p.constants[0] = {.bytes = "", .hash = 0x17}; });
  differs([](Program& p) { p.updates.pop_back(); });
  differs([](Program& p) { p.results.pop_back(); });
}

// Gathers of two units of one name, whose second piece travels in another type.
Program unit_step(const std::string& name) {
  const auto unit = [&](DType wire) {
    return UnitLayout::intern({.name = name,
                               .shard_bytes = 128,
                               .full_bytes = 128,
                               .pieces = {{.shape = {2, 3}, .full_dtype = DType::bf16, .wire = DType::bf16},
                                          {.shape = {5}, .wire = wire, .shard_offset = 64, .full_offset = 64}}});
  };
  const Tensor in[] = {Tensor::empty({128}, DType::u8), Tensor::empty({128}, DType::u8)};
  return captured(in, [&]() -> std::vector<Tensor> {
    start_gather(*unit(DType::f32), in[0], in[1]);
    start_gather(*unit(DType::bf16), in[0], in[1]);
    start_gather(*unit(DType::f32), in[0], in[1]);
    return {};
  });
}

std::string replaced(std::string text, std::string_view from, std::string_view into) {
  for (std::size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + into.size()))
    text.replace(at, from.size(), into);
  return text;
}

TEST(ProgramText, ListsTheLayoutsOfUnitsThatNodesName) {
  const Program program = unit_step("text.0");
  EXPECT_EQ(text(program),
            "program 1\n"
            "unit_layout text.0 {name=text.0 shard_bytes=128 full_bytes=128 pieces=["
            "{shape=[2,3] dtype=f32 full_dtype=bf16 wire=bf16 shard_offset=0 full_offset=0},"
            "{shape=[5] dtype=f32 full_dtype=f32 wire=f32 shard_offset=64 full_offset=64}]}\n"
            "unit_layout text.0~2 {name=text.0 shard_bytes=128 full_bytes=128 pieces=["
            "{shape=[2,3] dtype=f32 full_dtype=bf16 wire=bf16 shard_offset=0 full_offset=0},"
            "{shape=[5] dtype=f32 full_dtype=f32 wire=bf16 shard_offset=64 full_offset=64}]}\n"
            "argument u8[128]\n"
            "argument u8[128]\n"
            "value $0 u8[128] activations\n"
            "value $1 u8[128] activations\n"
            "nodes\n"
            "gather_start($0, $1) {unit=text.0} numbers 0,0,0\n"
            "gather_start($0, $1) {unit=text.0~2} numbers 0,0,1\n"
            "gather_start($0, $1) {unit=text.0} numbers 0,0,2\n"
            "return\n"
            "end\n");
  EXPECT_TRUE(parse(text(program)) == program);
}

// As in a process that never built the model: nobody here has interned these layouts.
TEST(ProgramText, BringsLayoutsOfUnitsThatNobodyHasMade) {
  const std::string foreign = replaced(text(unit_step("text.1")), "text.1", "nobody.1");
  const Program program = parse(foreign);
  verify(program);
  EXPECT_EQ(text(program), foreign);
  EXPECT_TRUE(parse(foreign) == program);
  const auto unit_of = [&](std::size_t node) { return program.nodes[node].attrs.as<UnitAttrs>().unit; };
  EXPECT_EQ(unit_of(0)->name, "nobody.1");
  EXPECT_EQ(unit_of(0)->pieces[1].wire, DType::f32);
  EXPECT_EQ(unit_of(1)->pieces[1].wire, DType::bf16);
  EXPECT_EQ(unit_of(2), unit_of(0));
  expect_error([] { parse_attrs(op::gather_start, "unit=nobody.1"); }, {"no unit of that name is known on this rank"});
}

TEST(ProgramText, UnitsMayHaveAnyName) {
  for (const char* name : {"a \"unit\"", "w.grad", "x{y", "\\", "\x01\xff", "~2"}) {
    const Program program = unit_step(name);
    EXPECT_TRUE(parse(text(program)) == program) << text(program);
  }
}

std::string error_of(std::string_view broken) {
  try {
    parse(broken);
  } catch (const Error& error) { return error.message(); }
  return "no error";
}

TEST(ProgramText, ErrorsSayWhere) {
  const std::string whole =
      "program 1\n"
      "module blocks.0\n"
      "argument f32[2,2]\n"
      "slot w had_value\n"
      "binding @w in @w f32[2,2]\n"
      "value $0 f32[2,2] activations\n"
      "value @w f32[2,2] parameters\n"
      "value %0 f32[] activations\n"
      "nodes\n"
      "%0 f32[] = sum($0) {dims=3 keep=false}  # blocks.0\n"
      "return %0\n"
      "end\n";
  ASSERT_EQ(error_of(whole), "no error");
  const auto refused = [&](std::string_view from, std::string_view into, std::string_view position,
                           std::string_view problem) {
    std::string broken = whole;
    const std::size_t at = broken.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    broken.replace(at, from.size(), into);
    expect_error([&] { parse(broken); }, {"program text, ", position, problem});
  };
  refused("program 1", "program 2", "line 1, column 1", "expected \"program 1\\x0a\", found \"program 2\"");
  refused("module blocks.0", "module ", "line 2, column 8", "expected a name, found the end of the line");
  refused("module blocks.0", "module \"blocks.0", "line 2, column 8", "the quote is not closed");
  refused("argument f32", "argument f31", "line 3, column 10", "f31");
  refused("argument f32[2,2]", "argument f32[2,2]s[1]", "line 3, column 10", "as many strides as dims");
  refused("argument f32[2,2]", "argument f32[281474976710656,2]", "line 3, column 13", "more elements");
  refused("argument f32[2,2]", "argument f32[2,2] on disk", "line 3, column 22", "cpu, meta or cuda:0");
  refused("had_value", "had_valu", "line 4, column 7", "expected the end of the line, found \" had_valu\"");
  refused("binding @w", "binding @v", "line 5, column 9", "there is no slot \"v\"");
  refused("in @w f32", "in %7 f32", "line 5, column 15", "there is no such value");
  refused("value $0", "value $1", "line 6, column 7", "expected number 0 of its kind");
  refused("[2,2] activations", "[2,2] stack", "line 6, column 19", "there is no memory category \"stack\"");
  refused("value @w f32[2,2] parameters\n", "", "line 5, column 15", "there is no such value");
  refused("= sum", "= sun", "line 10, column 12", "sun");
  refused("sum($0)", "sum($1)", "line 10, column 16", "there is no such value");
  refused("dims=3", "dims=x", "line 10, column 20", "dims = x is no");
  refused("false}", "false", "line 10, column 20", "the brace is not closed");
  refused("module blocks.0\n", "module a\nmodule a\n", "line 3, column", "\"a\" stands there twice");
  refused("argument f32[2,2]\n", "unit \"a\"\nunit \"a\"\nargument f32[2,2]\n", "line 4, column",
          "\"a\" stands there twice");
  refused("argument f32[2,2]\n", "setting \"a\" \"1\"\nsetting \"a\" \"2\"\nargument f32[2,2]\n", "line 4, column",
          "\"a\" stands there twice");
  refused("value %0 f32[] activations", "value $1 f32[2,2] activations source 0", "line 8, column 7",
          "another value is entry 0 of its table");
  refused("# blocks.0", "# blocks.1", "line 10, column 43", "\"blocks.1\" is not declared");
  refused("return %0", "retrun %0", "line 11, column 1", "retrun");
  refused("end\n", "end", "line 12, column 1", "expected \"@\", found \"end\"");
  refused("end\n", "", "line 12, column 1", "found the end of the text");
  refused("end\n", "end\n\n", "line 13, column 1", "expected the end of the text");
}

TEST(ProgramText, ErrorsInLayoutsOfUnitsSayWhere) {
  const std::string whole = text(unit_step("text.2"));
  ASSERT_EQ(error_of(whole), "no error");
  const auto refused = [&](std::string_view from, std::string_view into, std::string_view position,
                           std::string_view problem) {
    std::string broken = whole;
    const std::size_t at = broken.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    broken.replace(at, from.size(), into);
    expect_error([&] { parse(broken); }, {"program text, ", position, problem});
  };
  refused("layout text.2 {", "layout other {", "line 9, column 22", "the text has no layout of a unit of that name");
  refused("layout text.2~2", "layout text.2", "line 3, column 13", "\"text.2\" stands there twice");
  refused("layout text.2 {", "layout {", "line 2, column 13", "expected a name");
  refused("full_bytes=128", "full_bytes=80", "line 2, column 20", "piece 1, f32[5], leaves the full tensors");
  refused("full_bytes=128", "full_bytes=-1", "line 2, column 20", "are none");
  refused("dtype=f32", "dtype=f31", "line 2, column 20", "dtype = f31 is no dtype");
  refused("shape=[5]", "shape=[99999999999,99999999999]", "line 2, column 20", "more elements than memory has bytes");
  refused("shard_bytes=128 ", "shard_bytes=128 shards=2000000 shard_axis=dp ", "line 2, column 20", "is none");
  refused("]}\n", "]\n", "line 2, column 20", "the brace is not closed");
}

TEST(ProgramText, ATruncatedTextIsAnErrorWithItsPlace) {
  for (const std::string& whole : {text(odd_step()), text(unit_step("text.3"))})
    for (std::size_t length = 0; length < whole.size(); ++length)
      ASSERT_TRUE(error_of(whole.substr(0, length)).starts_with("program text, line ")) << whole.substr(0, length);
}

// What is read at all is sound or refused by verify(), and is written as it was read. What is sound can be asked about,
// taken apart and put together.
void expect_refused_or_sound(const std::string& broken) {
  Program program;
  try {
    program = parse(broken);
  } catch (const Error& error) {
    ASSERT_TRUE(error.message().starts_with("program text, line ")) << error.what() << "\n" << broken;
    return;
  }
  const std::string written = text(program);
  ASSERT_TRUE(parse(written) == program) << broken;
  try {
    verify(program);
  } catch (const Error&) { return; }
  (void)to_string(program);
  const Order order(program);
  const Meanings meanings(program);
  const auto expect_same = [&](const Program& changed) {
    ASSERT_NO_THROW(verify(changed)) << broken;
    ASSERT_NO_THROW(check_same_meaning(meanings, changed)) << broken;
  };
  Program changed = program;
  ssa(changed);
  expect_same(changed);
  place_eager(changed);
  expect_same(changed);
}

struct Soak {
  std::vector<std::uint64_t> seeds{1, 20261126, 77'003'141, 4'000'000'007};
  std::uint64_t trials;  // of each seed
  std::chrono::duration<double> limit{60};
  // tools/soak/programs.py sets these.
  explicit Soak(std::uint64_t usual_trials) : trials(usual_trials / seeds.size()) {
    if (const char* const text = std::getenv("SHERD_SOAK_SEED")) {
      seeds = {std::stoull(text)};
      trials = usual_trials;
    }
    if (const char* const text = std::getenv("SHERD_SOAK_SECONDS")) {
      seeds.resize(1);
      limit = std::chrono::duration<double>(std::stod(text));
      trials = ~0ull;
    }
  }
  void run(std::string_view what, std::span<const std::string> texts) const {
    const auto start = std::chrono::steady_clock::now();
    for (const std::uint64_t seed : seeds) {
      std::uint64_t trial = 0;
      for (; trial < trials && std::chrono::steady_clock::now() - start < limit; ++trial) {
        SCOPED_TRACE(fmt::format("seed {} trial {}", seed, trial));
        expect_refused_or_sound(Mutator(seed * 1'000'003 + trial).damaged(texts[trial % texts.size()]));
        if (::testing::Test::HasFatalFailure()) return;
      }
      fmt::print("seed {}: {} altered texts of {}\n", seed, trial, what);
    }
  }
};

TEST(ProgramText, AnAlteredTextIsRefusedOrIsAnotherProgram) {
  const std::string whole[] = {text(tiny_step()), text(odd_step()), text(gpt_step()), text(passed_step()),
                               text(unit_step("text.4"))};
  Soak(4000).run("steps of one rank", whole);
}

// With waits, scratch, units and groups, whose names mean something on the rank that has them.
TEST(ProgramText, AnAlteredTextOfAShardedStepIsRefusedOrIsAnotherProgram) {
  for_each_step([](const StepCase& c, const RecordedStep& step) {
    if (c.ranks == 1 || step.group().rank() != 0) return;
    Program apart = step.complete();
    ssa(apart);
    const std::string whole[] = {text(step.complete()), text(apart)};
    Soak(200).run(c.name, whole);
  });
}

}  // namespace
}  // namespace sherd::testing
