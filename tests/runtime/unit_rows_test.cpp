// Rows of units without fully_shard: layouts as data, and what the rows do on one rank; several: tests/parallel.
#include <gtest/gtest.h>

#include <numeric>

#include "runtime/exec/context.h"
#include "runtime/op/attrs/attr_text.h"
#include "runtime/op/rows/ops.h"
#include "runtime/op/unit/buffer_views.h"
#include "runtime/op/unit/unit.h"
#include "tests/support/expect_error.h"
#include "tests/support/near.h"

namespace sherd::testing {
namespace {

/// Two pieces of one shard, the first cast to bf16.
UnitLayout two_pieces() {
  UnitPiece matrix{.shape = {2, 3}, .full_dtype = DType::bf16, .wire = DType::bf16};
  UnitPiece vector{.shape = {5}, .shard_offset = 64, .full_offset = 64};
  return {.name = "blocks.3", .shard_bytes = 128, .full_bytes = 128, .pieces = {matrix, vector}};
}

Tensor bytes(std::int64_t count) {
  Tensor t = Tensor::empty({count}, DType::u8);
  fill_into(t, 0);
  return t;
}

TEST(UnitLayout, EqualOnesAreOneObject) {
  const UnitLayoutPtr a = UnitLayout::intern(two_pieces());
  EXPECT_EQ(UnitLayout::intern(two_pieces()), a);
  EXPECT_EQ(a->counts(a->piece(0)), std::vector<std::int64_t>{6});
  UnitLayout other = two_pieces();
  other.pieces[1].wire = DType::bf16;
  const UnitLayoutPtr b = UnitLayout::intern(other);
  EXPECT_NE(a, b);
  EXPECT_NE(label_of(*a), label_of(*b)) << "both are called blocks.3";
  for (const UnitLayoutPtr& layout : {a, b}) {
    const std::string text = AttrsView(UnitAttrs{layout}).print();
    EXPECT_EQ(parse_attrs(op::release, text).as<UnitAttrs>().unit, layout) << text;
  }
}

/// Two pieces, of a name of its own, whose second travels in `wire`.
UnitLayout named(std::string name, DType wire = DType::f32) {
  UnitLayout layout = two_pieces();
  layout.name = std::move(name);
  layout.pieces[1].wire = wire;
  return layout;
}

TEST(UnitLayout, EndsWithItsLastReference) {
  const RankScope rank;
  const std::size_t before = UnitLayout::count_interned();
  UnitLayoutPtr layout = UnitLayout::intern(named("ends.0")), equal = UnitLayout::intern(named("ends.0"));
  const std::weak_ptr<const UnitLayout> watched = layout->shared();
  EXPECT_EQ(equal, layout);
  layout.reset();
  EXPECT_EQ(watched.lock(), equal);
  EXPECT_EQ(UnitLayout::count_interned(), before + 1);
  equal.reset();
  EXPECT_TRUE(watched.expired());
  EXPECT_EQ(UnitLayout::count_interned(), before);
}

TEST(UnitLayout, IsKeptByAttributesThatNameIt) {
  const RankScope rank;
  UnitLayoutPtr layout = UnitLayout::intern(named("kept.0"));
  const UnitAttrs of_call{*layout};
  const Attrs kept = AttrsView(of_call).keep();
  layout.reset();
  EXPECT_EQ(kept.as<UnitAttrs>().unit->name, "kept.0");
  const UnitLayoutPtr again = UnitLayout::intern(named("kept.0"));
  EXPECT_EQ(kept.as<UnitAttrs>().unit, again);
}

TEST(UnitLayout, ItsLabelIsFreeOnceItIsGone) {
  const RankScope rank;
  for (int i = 0; i < 3; ++i) {
    const UnitLayoutPtr first = UnitLayout::intern(named("label.0"));
    const UnitLayoutPtr second = UnitLayout::intern(named("label.0", DType::bf16));
    EXPECT_EQ(label_of(*first), "label.0");
    EXPECT_EQ(label_of(*second), "label.0~2");
  }
  const UnitLayoutPtr other = UnitLayout::intern(named("label.0", DType::bf16));
  EXPECT_EQ(label_of(*other), "label.0");
  expect_error([] { parse_attrs(op::release, "unit=label.0~2"); }, {"no unit of that name is known on this rank"});
}

// Ranks that are threads share the layout, and drop it when they please.
TEST(UnitLayout, ItsLabelIsFreeWhateverOtherRanksKeep) {
  const RankScope one;
  UnitLayoutPtr here = UnitLayout::intern(named("shared.0"));
  UnitLayoutPtr there;
  {
    const RankScope other;
    there = UnitLayout::intern(named("shared.0"));
  }
  EXPECT_EQ(here, there);
  here.reset();
  const UnitLayoutPtr next = UnitLayout::intern(named("shared.0", DType::bf16));
  EXPECT_EQ(label_of(*next), "shared.0");
}

TEST(UnitLayout, ACopyIsNotWhatRowsTake) {
  const UnitLayoutPtr interned = UnitLayout::intern(named("copy.0"));
  const UnitLayout copy = *interned;
  EXPECT_EQ(interned->shared(), interned);
  expect_error([&] { start_gather(copy, bytes(128), bytes(128)); }, {"copy.0", "is a copy", "UnitLayout::intern()"});
}

// A text brings layouts that no unit of this rank has: what units are called here does not depend on it.
TEST(UnitLayout, OfATextTakesNoLabel) {
  const UnitLayout read = named("read.0"), own = named("read.0", DType::bf16);
  const UnitLayoutPtr of_text = UnitLayout::of_content(read);
  const UnitLayoutPtr of_rank = UnitLayout::intern(own);
  EXPECT_EQ(label_of(*of_rank), "read.0");
  const UnitLayoutPtr labelled = UnitLayout::intern(read);
  EXPECT_EQ(labelled, of_text);
  EXPECT_EQ(label_of(*of_text), "read.0~2");
}

TEST(UnitLayout, AttributesThatNameItAreHashedByItsContent) {
  const UnitLayoutPtr interned = UnitLayout::intern(two_pieces());
  const auto elsewhere = std::make_shared<const UnitLayout>(two_pieces());  // as another process has it
  const UnitAttrs here{interned}, there{elsewhere};
  EXPECT_EQ(AttrsView(here).hash(), AttrsView(there).hash());
  UnitLayout other = two_pieces();
  other.pieces[1].wire = DType::bf16;
  const UnitAttrs different{std::make_shared<const UnitLayout>(other)};
  EXPECT_NE(AttrsView(here).hash(), AttrsView(different).hash());
  EXPECT_NE(AttrsView(here).hash(), AttrsView(UnitAttrs{}).hash());
}

TEST(UnitLayout, ATextMayHaveNamesOfItsOwn) {
  const UnitLayoutPtr unit = UnitLayout::intern(two_pieces());
  const UnitAttrs attrs{unit};
  AttrWriter out(false, [&](const UnitLayout& named) { return &named == unit.get() ? "the unit" : "another"; });
  out.fields(attr_kind<UnitAttrs>, &attrs);
  const std::string text = out.take();
  EXPECT_EQ(text, "unit=\"the unit\"");
  const UnitFinder find = [&](const std::string& name) { return name == "the unit" ? unit : nullptr; };
  EXPECT_EQ(parse_attrs(op::release, text, find).as<UnitAttrs>().unit, unit);
  expect_error([&] { parse_attrs(op::release, "unit=" + label_of(*unit), find); },
               {"release: unit = ", "the text has no layout of a unit of that name"});
}

TEST(UnitLayout, IsReadFromWhatItPrints) {
  const UnitLayoutPtr even = UnitLayout::intern({.name = "(model)",
                                                 .shard_axis = "dp#2",
                                                 .shards = 4,
                                                 .shard = 3,
                                                 .full_bytes = 64,
                                                 .pieces = {{.shape = {3, 2}, .dtype = DType::f64}}});
  EXPECT_EQ(even->counts(even->piece(0)), (std::vector<std::int64_t>{2, 2, 2, 0}));
  EXPECT_EQ(even->count_here(even->piece(0)), 0);
  const UnitLayoutPtr listed = UnitLayout::intern({.name = "a b",
                                                   .shard_axis = "dp_cp#3",
                                                   .replica_axis = "replicate#1",
                                                   .shards = 2,
                                                   .replicas = 3,
                                                   .shard_bytes = 64,
                                                   .full_bytes = 64,
                                                   .pieces = {{.shape = {5}, .rows = {1, 4}}}});
  EXPECT_EQ(listed->counts(listed->piece(0)), (std::vector<std::int64_t>{1, 4}));
  const UnitLayoutPtr columns = UnitLayout::intern({.name = "columns",
                                                    .shard_axis = "dp#2",
                                                    .shards = 4,
                                                    .shard = 1,
                                                    .shard_bytes = 48,
                                                    .full_bytes = 168,
                                                    .pieces = {{.shape = {2, 3, 7}, .dim = 2}}});
  EXPECT_EQ(columns->counts(columns->piece(0)), (std::vector<std::int64_t>{12, 12, 12, 6}));
  EXPECT_EQ(UnitLayout::blocks(columns->piece(0)), 6);
  EXPECT_EQ(UnitLayout::blocks(even->piece(0)), 1);
  for (const UnitLayoutPtr& layout : {even, listed, columns, UnitLayout::intern(two_pieces())})
    EXPECT_EQ(UnitLayout::intern(parse_unit_layout(layout->print())), layout) << layout->print();
}

TEST(UnitLayout, CountsOfManyShardsAreARule) {
  constexpr int kShards = 16384;
  const UnitLayoutPtr unit = UnitLayout::intern({.name = "wide",
                                                 .shard_axis = "dp#1",
                                                 .shards = kShards,
                                                 .shard = 14285,
                                                 .shard_bytes = 84,
                                                 .full_bytes = 1'200'000,
                                                 .pieces = {{.shape = {100'000, 3}}}});
  const UnitPiece& piece = unit->piece(0);
  EXPECT_TRUE(piece.rows.empty());
  EXPECT_EQ(unit->count_here(piece), 5 * 3) << "what chunks of 7 rows leave";
  EXPECT_EQ(unit->count(piece, 0), 7 * 3);
  EXPECT_EQ(unit->count(piece, kShards - 1), 0);
  const std::vector<std::int64_t> counts = unit->counts(piece);
  EXPECT_EQ(counts.size(), std::size_t{kShards});
  EXPECT_EQ(std::accumulate(counts.begin(), counts.end(), std::int64_t{0}), 300'000);
}

TEST(UnitLayout, WhatDoesNotAddUpIsNamed) {
  const auto refuse = [](const auto& change, std::initializer_list<std::string_view> parts) {
    UnitLayout layout = two_pieces();
    change(layout);
    expect_error([&] { UnitLayout::intern(layout); }, parts);
  };
  refuse([](UnitLayout& u) { u.name = ""; }, {"needs a name"});
  refuse([](UnitLayout& u) { u.shards = 0; }, {"blocks.3", "shard 0 of 0"});
  refuse([](UnitLayout& u) { u.shards = 2; }, {"blocks.3", "a group is named where there are several"});
  refuse([](UnitLayout& u) { u.full_bytes = 80; }, {"piece 1", "leaves the full tensors"});
  refuse([](UnitLayout& u) { u.pieces[0].shard_offset = 2; }, {"piece 0", "leaves the shards"});
  refuse([](UnitLayout& u) { u.pieces[0].rows = {1}; }, {"piece 0", "more rows than its shards"});
  refuse([](UnitLayout& u) { u.pieces[0].rows = {1, 1}; }, {"piece 0", "another number of shards"});
  refuse([](UnitLayout& u) { u.pieces[1].shape = {}; }, {"piece 1", "no dim to shard"});
  refuse([](UnitLayout& u) { u.pieces[1].dim = 1; }, {"piece 1", "no such dim to shard"});
  refuse([](UnitLayout& u) { u.pieces[0].dim = -1; }, {"piece 0", "no such dim to shard"});
  refuse([](UnitLayout& u) { u.in_place = true; }, {"piece 0", "is in place"});
  refuse(
      [](UnitLayout& u) {
        u.in_place = true;
        u.shard_bytes = 192;
      },
      {"192 bytes of shards", "are not one buffer"});
  refuse([](UnitLayout& u) { u.pieces[1].shape = {std::int64_t{1} << 40, std::int64_t{1} << 40}; },
         {"piece 1", "more elements than memory"});
  refuse([](UnitLayout& u) { u.pieces[1].shape = {0, std::int64_t{1} << 40, std::int64_t{1} << 40}; },
         {"piece 1", "more elements than memory"});
  refuse([](UnitLayout& u) { u.full_bytes = -1; }, {"blocks.3", "-1 of full tensors are none"});
  refuse([](UnitLayout& u) { u.replicas = 1 << 30; }, {"blocks.3", "replicas is none"});
  expect_error([] { parse_unit_layout("name=x shard_bytes=0 full_bytes=0 pieces=[{shape=[2]}]"); },
               {"dtype is missing"});
}

TEST(UnitRows, AttributesNameUnitsByTheirLabels) {
  const UnitLayoutPtr unit = UnitLayout::intern(two_pieces());
  const UnitReduceAttrs attrs{
      .unit = unit,
      .scale = 0.25,
      .in_flight = 3,
      .pieces = {{.piece = 1, .offset = 64, .kind = ReduceKind::sum, .add_to = AddTo::unsummed},
                 {.piece = 0, .offset = 0, .kind = ReduceKind::avg, .add_to = AddTo::gradient}}};
  const std::string text = AttrsView(attrs).print();
  EXPECT_EQ(text, fmt::format("unit={} scale=0.25 in_flight=3 pieces=[{{piece=1 offset=64 kind=sum add_to=unsummed}},"
                              "{{piece=0 offset=0 kind=avg add_to=gradient}}]",
                              label_of(*unit)));
  EXPECT_TRUE(parse_attrs(op::reduce_start, text) == AttrsView(attrs));
  const UnitReduceAttrs second{.unit = unit, .over_replicas = true, .pieces = {}};
  EXPECT_TRUE(parse_attrs(op::reduce_start, AttrsView(second).print()) == AttrsView(second));
  expect_error([] { parse_attrs(op::gather_start, "unit=nobody"); },
               {"gather_start: unit = nobody: no unit of that name is known on this rank"});
  expect_error([&] { parse_attrs(op::reduce_start, "unit=blocks.3 scale=1 pieces=[{piece=0 offset=0 kind=mean}]"); },
               {"kind = mean", "is no reduction (sum, avg, max, min, product)"});
}

/// Rank 1 of 2 has the last two of five elements, in the buffer where all of them lie.
UnitLayout in_place() {
  return {.name = "blocks.4",
          .shard_axis = "replicate#1",
          .shards = 2,
          .shard = 1,
          .shard_bytes = 64,
          .full_bytes = 64,
          .in_place = true,
          .pieces = {{.shape = {5}, .shard_offset = 12}}};
}

TEST(UnitLayout, ShardsMayLieInTheFullTensors) {
  const UnitLayoutPtr unit = UnitLayout::intern(in_place());
  EXPECT_EQ(unit->count_here(unit->piece(0)), 2);
  EXPECT_EQ(UnitLayout::intern(parse_unit_layout(unit->print())), unit) << unit->print();
  UnitLayout elsewhere = in_place();
  elsewhere.pieces[0].shard_offset = 0;
  expect_error([&] { UnitLayout::intern(elsewhere); }, {"blocks.4", "piece 0", "its shard is not what"});
  UnitLayout cast = in_place();
  cast.pieces[0].full_dtype = DType::bf16;
  expect_error([&] { UnitLayout::intern(cast); }, {"piece 0", "is in place"});
  expect_error([&] { start_gather(*unit, bytes(64), bytes(64)); }, {"gather_start", "input 1 is u8[64]", "u8[0]"});
}

TEST(UnitRows, GatherCastsUnlessItIsCurrent) {
  const UnitLayoutPtr kept = UnitLayout::intern(two_pieces());
  const UnitLayout& unit = *kept;
  const Tensor shards = bytes(128), full = bytes(128);
  copy_into(view_at(shards, {2, 3}, 0, DType::f32), Tensor::from<float>({1, 2, 3, 4, 5, 1.0009765625}, {2, 3}));
  copy_into(view_at(shards, {5}, 64, DType::f32), Tensor::from<float>({-1, -2, -3, -4, -5}, {5}));
  start_gather(unit, shards, full);
  EXPECT_EQ(full.storage()->version(), shards.storage()->version());
  EXPECT_TRUE(same_bits(view_at(full, {2, 3}, 0, DType::bf16),
                        cast(Tensor::from<float>({1, 2, 3, 4, 5, 1}, {2, 3}), DType::bf16)));
  EXPECT_TRUE(same_bits(view_at(full, {5}, 64, DType::f32), Tensor::from<float>({-1, -2, -3, -4, -5}, {5})));
  // Nothing is done while versions are equal, and all of it after a write to the shards.
  const std::uint32_t version = full.storage()->version();
  fill_into(view_at(full, {5}, 64, DType::f32), 7);
  full.storage()->set_version(version);
  start_gather(unit, shards, full);
  EXPECT_TRUE(same_bits(view_at(full, {5}, 64, DType::f32), sherd::full({5}, 7)));
  fill_into(view_at(shards, {5}, 64, DType::f32), 9);
  start_gather(unit, shards, full);
  EXPECT_TRUE(same_bits(view_at(full, {5}, 64, DType::f32), sherd::full({5}, 9)));
  release_unit(unit, full);
  EXPECT_FALSE(full.storage()->is_present());
  start_gather(unit, shards, full);
  EXPECT_TRUE(same_bits(view_at(full, {5}, 64, DType::f32), sherd::full({5}, 9)));
}

// Bytes that came back hold nothing, though the shards are those of before.
TEST(UnitRows, WhatIsRestoredIsNotCurrent) {
  const UnitLayoutPtr kept = UnitLayout::intern(two_pieces());
  const UnitLayout& unit = *kept;
  const Tensor shards = bytes(128), full = bytes(128);
  start_gather(unit, shards, full);
  restore_unit(unit, full);
  EXPECT_EQ(full.storage()->version(), shards.storage()->version()) << "they were there";
  release_unit(unit, full);
  restore_unit(unit, full);
  EXPECT_TRUE(full.storage()->is_present());
  fill_into(view_at(shards, {5}, 64, DType::f32), 9);
  release_unit(unit, full);
  start_gather(unit, shards, full);
  release_unit(unit, full);
  restore_unit(unit, full);
  start_gather(unit, shards, full);
  EXPECT_TRUE(same_bits(view_at(full, {5}, 64, DType::f32), sherd::full({5}, 9)));
}

// Sums and averages, stored and added, of a buffer that holds some of the pieces in another order.
TEST(UnitRows, ReduceScalesAveragesAndAdds) {
  const UnitLayoutPtr unit = UnitLayout::intern(two_pieces());
  const Tensor gradients = gradient_buffer(128, Device::cpu());
  EXPECT_EQ(gradients.storage()->category(), MemoryCategory::gradients);
  EXPECT_EQ(communication_buffer(8, Device::cpu()).storage()->category(), MemoryCategory::communication);
  const Tensor matrix = view_at(gradients, {2, 3}, 64, DType::bf16), vector = view_at(gradients, {5}, 0, DType::f32);
  copy_into(matrix, sherd::full({2, 3}, 8, DType::bf16));
  copy_into(vector, sherd::full({5}, 3));
  const Tensor out[] = {sherd::full({2, 3}, 1), sherd::full({5}, 1)};
  start_reduce({.unit = unit,
                .scale = 0.25,
                .pieces = {{.piece = 0, .offset = 64, .kind = ReduceKind::avg, .add_to = AddTo::gradient},
                           {.piece = 1, .offset = 0, .kind = ReduceKind::sum}}},
               gradients, out);
  EXPECT_TRUE(same_bits(out[0], sherd::full({2, 3}, 3)));
  EXPECT_TRUE(same_bits(out[1], sherd::full({5}, 3)));
  EXPECT_EQ(gradients.storage()->category(), MemoryCategory::gradients) << "nothing is communicated";
}

TEST(UnitRows, WrongCallsAreNamed) {
  const UnitLayoutPtr kept = UnitLayout::intern(two_pieces());
  const UnitLayout& unit = *kept;
  const Tensor full = bytes(128), part = zeros({5});
  expect_error([&] { start_gather(unit, bytes(64), full); }, {"gather_start", "input 0 is u8[64]", "u8[128]"});
  const auto reduce = [&](ReducedPiece piece, const Tensor& out) {
    start_reduce({.unit = kept, .pieces = {piece}}, full, {&out, 1});
  };
  expect_error([&] { reduce({.piece = 2}, part); }, {"blocks.3", "has 2 pieces, not one 2"});
  expect_error([&] { reduce({.piece = 1, .offset = 112}, part); }, {"lies at byte 112 of u8[128]"});
  expect_error([&] { reduce({.piece = 1, .kind = ReduceKind::max}, part); }, {"summed or averaged, not max"});
  expect_error([&] { reduce({.piece = 0}, part); }, {"input 0 is f32[5]", "has 6 elements"});
  expect_error([&] { reduce({.piece = 1}, zeros({5}, DType::f64)); }, {"piece 1 is f32", "its result is f64[5]"});
  expect_error([&] { start_reduce({.unit = kept}, full, {&part, 1}); }, {"2 tensors for 0 pieces"});
}

}  // namespace
}  // namespace sherd::testing
