// Attributes of op calls: what they print reads back to equal ones, wrong texts are refused with a reason, and owners
// that keep attributes share them.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>

#include "runtime/op/attrs/attr_list.h"
#include "runtime/op/rows/collective_attrs.h"
#include "runtime/op/rows/create_attrs.h"
#include "runtime/op/rows/index_attrs.h"
#include "runtime/op/rows/pointwise_attrs.h"
#include "runtime/op/rows/random_attrs.h"
#include "runtime/op/rows/reduce_attrs.h"
#include "runtime/op/rows/view_attrs.h"
#include "tests/support/expect_error.h"
#include "tests/support/op_cases.h"

namespace sherd::testing {
namespace {

// As the rows of units will have: how many pieces there are is up to the call.
struct Piece {
  int piece = 0;
  std::int64_t offset = 0;
  Shape shape;
  static constexpr AttrField fields[] = {attr<&Piece::piece>("piece"), attr<&Piece::offset>("offset").local(),
                                         attr<&Piece::shape>("shape").optional()};
};
struct UnitAttrs {
  std::string unit;
  std::vector<Piece> pieces;
  std::vector<std::int64_t> counts;
  double scale = 1;
  static constexpr AttrField fields[] = {attr<&UnitAttrs::unit>("unit"), attr<&UnitAttrs::pieces>("pieces"),
                                         attr<&UnitAttrs::counts>("counts").optional(),
                                         attr<&UnitAttrs::scale>("scale").optional()};
};
// Too large for the pools.
struct LargeAttrs {
  Shape a, b, c, d, e;
  static constexpr AttrField fields[] = {attr<&LargeAttrs::a>("a"), attr<&LargeAttrs::b>("b"),
                                         attr<&LargeAttrs::c>("c"), attr<&LargeAttrs::d>("d"),
                                         attr<&LargeAttrs::e>("e")};
};
struct TwoFloats {
  double wide = 0;
  float narrow = 0;
  static constexpr AttrField fields[] = {attr<&TwoFloats::wide>("wide"), attr<&TwoFloats::narrow>("narrow")};
};

template <class T>
Attrs parse(std::string_view text) {
  return parse_attrs(attr_kind<T>, text);
}

UnitAttrs a_unit() {
  return {.unit = "blocks.0", .pieces = {{0, 64, {2, 3}}, {2, 0, {}}}, .counts = {5, 7}, .scale = 0.5};
}

// ---- content ----

TEST(Attrs, PrintAndCompareByTheirFields) {
  const Attrs a = ReduceAttrs{0b101, true}, b = ReduceAttrs{0b101, true}, c = ReduceAttrs{0b101, false};
  EXPECT_EQ(a.print(), "dims=5 keep=true");
  EXPECT_TRUE(a == b);
  EXPECT_EQ(a.hash(), b.hash());
  EXPECT_FALSE(a == c);
  EXPECT_NE(a.hash(), c.hash());
  EXPECT_FALSE(a == Attrs(DimAttrs{5}));
  EXPECT_FALSE(a == Attrs());
  EXPECT_TRUE(Attrs() == AttrsView());
  EXPECT_EQ(Attrs().print(), "");
  EXPECT_EQ(Attrs(FullAttrs{{2, 3}, 1.5, DType::bf16}).print(), "shape=[2,3] value=1.5 dtype=bf16");
}

TEST(Attrs, FloatsAreComparedByTheirBits) {
  EXPECT_FALSE(Attrs(ScalarAttrs{0.0}) == Attrs(ScalarAttrs{-0.0}));
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_TRUE(Attrs(ScalarAttrs{nan}) == Attrs(ScalarAttrs{-nan}));
  EXPECT_EQ(Attrs(ScalarAttrs{nan}).hash(), Attrs(ScalarAttrs{-nan}).hash());
}

TEST(Attrs, MayHoldLists) {
  const Attrs a = a_unit();
  EXPECT_EQ(a.print(),
            "unit=blocks.0 pieces=[{piece=0 offset=64 shape=[2,3]},{piece=2 offset=0}] counts=[5,7] scale=0.5");
  EXPECT_EQ(a.print_rank_neutral(), "unit=blocks.0 pieces=[{piece=0 shape=2d},{piece=2}] counts=[5,7] scale=0.5");
  EXPECT_TRUE(parse<UnitAttrs>(a.print()) == a);
  UnitAttrs other = a_unit();
  other.pieces[1].offset = 8;
  EXPECT_FALSE(a == Attrs(other));
  EXPECT_NE(a.hash(), Attrs(other).hash());
  EXPECT_EQ(parse<UnitAttrs>("unit=x pieces=[]").as<UnitAttrs>().counts.size(), 0u);
}

TEST(Attrs, TextForAllRanksLeavesOutWhatDiffersBetweenThem) {
  EXPECT_EQ(Attrs(NarrowAttrs{1, 2, 4}).print_rank_neutral(), "dim=1");
  EXPECT_EQ(Attrs(ShapeAttrs{{2, 3}}).print_rank_neutral(), "shape=2d");
  EXPECT_EQ(Attrs(EmbeddingAttrs{.rows = 5, .part = {3, 9}}).print_rank_neutral(), "total_ids=9");
  EXPECT_EQ(Attrs(TransferAttrs{Device::cuda(3)}).print_rank_neutral(), "device=cuda");
}

// ---- views and blocks ----

TEST(Attrs, AViewCostsNothingAndKeptAttributesAreShared) {
  const UnitAttrs unit = a_unit();
  const AttrsView view = unit;
  EXPECT_EQ(&view.as<UnitAttrs>(), &unit);
  const Attrs kept = view.keep();
  EXPECT_NE(&kept.as<UnitAttrs>(), &unit);
  EXPECT_TRUE(kept == view);
  EXPECT_TRUE(*AttrsView(kept).kind() == *view.kind());
  const Attrs again = AttrsView(kept).keep();
  EXPECT_EQ(&again.as<UnitAttrs>(), &kept.as<UnitAttrs>());
  EXPECT_TRUE(AttrsView().keep().empty());
}

TEST(Attrs, BlocksOfAllSizesLiveOnWithoutTheirFirstHolder) {
  for (int i = 0; i < 3; ++i) {
    Attrs small, medium, large, largest;
    {
      const Attrs first[] = {DimAttrs{i}, ShapeAttrs{{i, 2}}, RandomAttrs{.shape = {i}, .key = 9},
                             LargeAttrs{{i}, {2}, {3}, {4}, {5}}};
      small = first[0], medium = first[1], large = first[2], largest = first[3];
    }
    EXPECT_EQ(small.as<DimAttrs>().dim, i);
    EXPECT_EQ(medium.print(), fmt::format("shape=[{},2]", i));
    EXPECT_EQ(large.as<RandomAttrs>().key, 9u);
    EXPECT_EQ(largest.print(), fmt::format("a=[{}] b=[2] c=[3] d=[4] e=[5]", i));
  }
}

// ---- reading ----

TEST(ParseAttrs, ReadsWhatEveryCaseOfEveryRowPrints) {
  std::size_t num_read = 0;
  for (const OpCase& c : op_cases()) {
    const Attrs read = parse_attrs(find_op(c.op), c.attrs.print());
    EXPECT_TRUE(read == c.attrs) << c.op << " " << c.name << ": " << c.attrs.print();
    EXPECT_EQ(read.hash(), c.attrs.hash());
    EXPECT_EQ(read.print(), c.attrs.print());
    num_read += !read.empty();
  }
  EXPECT_GT(num_read, 100u);
}

TEST(ParseAttrs, RowsNameTheStructThatTheirCallsCarry) {
  for (const OpCase& c : op_cases()) {
    const Op& row = find_op(c.op);
    ASSERT_EQ(row.attrs == nullptr, c.attrs.empty()) << c.op;
    if (row.attrs) { EXPECT_TRUE(*row.attrs == *c.attrs.kind()) << c.op; }
  }
  expect_error([] { parse_attrs(find_op("narrow"), "dim=0 start=3x length=4"); },
               {"narrow: start = 3x is no integer; attributes are dim, start, length"});
  expect_error([] { parse_attrs(find_op("add"), "dim=0"); }, {"add: it carries no attributes", "dim=0"});
}

TEST(ParseAttrs, FieldsComeInAnyOrderAndSomeHaveDefaults) {
  EXPECT_TRUE(parse<NarrowAttrs>("  length=4 dim=0   start=-2 ") == Attrs(NarrowAttrs{0, -2, 4}));
  const auto full = parse<FullAttrs>("dtype=i64 shape=[] value=2").as<FullAttrs>();
  EXPECT_EQ(full.device, Device::cpu());
  for (const Device device : {Device::cpu(), Device::meta(), Device::cuda(0), Device::cuda(3)})
    EXPECT_EQ(parse<TransferAttrs>(Attrs(TransferAttrs{device}).print()).as<TransferAttrs>().device, device);
  EXPECT_TRUE(parse<EmbeddingAttrs>("") == Attrs(EmbeddingAttrs{}));
  EXPECT_TRUE(parse<EmbeddingAttrs>("total_ids=9 first_id=0") == Attrs(EmbeddingAttrs{.part = {0, 9}}));
  const std::uint64_t key = 0xfedcba9876543210u;
  EXPECT_EQ(parse<DropoutAttrs>(Attrs(DropoutAttrs{.p = 0.1f, .key = key}).print()).as<DropoutAttrs>().key, key);
}

TEST(ParseAttrs, NumbersReadBackToTheSameBits) {
  std::mt19937_64 random(17);
  std::vector<TwoFloats> all{{0.0, -0.0f},
                             {0.1, 0.1f},
                             {-std::numeric_limits<double>::infinity(), 1e-45f},
                             {5e-324, std::numeric_limits<float>::max()},
                             {1e300, 16777217.0f}};
  for (int i = 0; i < 2000; ++i) {
    const std::uint64_t bits = random();
    all.push_back({std::bit_cast<double>(bits), std::bit_cast<float>(static_cast<std::uint32_t>(bits))});
  }
  for (const TwoFloats& x : all) {
    const Attrs read = parse<TwoFloats>(Attrs(x).print());
    const auto& y = read.as<TwoFloats>();
    EXPECT_TRUE(std::isnan(x.wide) ? std::isnan(y.wide)
                                   : std::bit_cast<std::uint64_t>(x.wide) == std::bit_cast<std::uint64_t>(y.wide))
        << x.wide;
    EXPECT_TRUE(std::isnan(x.narrow) ? std::isnan(y.narrow)
                                     : std::bit_cast<std::uint32_t>(x.narrow) == std::bit_cast<std::uint32_t>(y.narrow))
        << x.narrow;
    EXPECT_TRUE(read == AttrsView(x));
  }
}

TEST(ParseAttrs, NamesMayBeAnyText) {
  for (const std::string name : {"dp#1", "", "a b", "say \"x\" \\", "[1,2]", "a=b", "line\nline", "\xc3\xa9"}) {
    UnitAttrs unit = a_unit();
    unit.unit = name;
    const Attrs read = parse<UnitAttrs>(Attrs(unit).print());
    EXPECT_EQ(read.as<UnitAttrs>().unit, name);
    EXPECT_TRUE(read == Attrs(unit));
  }
}

TEST(ParseAttrs, ErrorsNameTheFieldWhatIsThereAndWhatIsExpected) {
  const auto refused = [](std::string_view text, std::initializer_list<std::string_view> parts) {
    expect_error([&] { parse<NarrowAttrs>(text); }, parts);
  };
  refused("dim=0 start=3x length=4", {"start = 3x is no integer; attributes are dim, start, length"});
  refused("dim=0 start= length=4", {"start =  is no integer"});
  refused("dim=0 start=99999999999999999999 length=4", {"is no integer of 64 bits"});
  refused("dim=3000000000 start=0 length=4", {"dim = 3000000000 is no integer of 32 bits"});
  refused("dim=0 stort=1 length=4", {"there is no stort (did you mean start?)"});
  refused("dim=0 start=1", {"length is missing; attributes are dim, start, length"});
  refused("dim=0 dim=0", {"dim stands there twice"});
  refused("dim=0,1 start=1 length=4", {"dim = 0,1: that is more than a value"});
  refused("dim", {"\"dim\" does not begin with name="});
  refused("dim=0 start=1 length=4}", {"end in a brace that none opens"});
  expect_error([] { parse<FullAttrs>("shape=[2,x] value=1 dtype=f32"); }, {"shape = [2,x] is no integer"});
  expect_error([] { parse<FullAttrs>("shape=[1,1,1,1,1,1,1,1,1] value=1 dtype=f32"); }, {"list of at most 8 integers"});
  expect_error([] { parse<FullAttrs>("shape=2 value=1 dtype=f32"); }, {"shape = 2 is no list"});
  expect_error([] { parse<FullAttrs>("shape=[2] value=one dtype=f32"); }, {"value = one is no number"});
  expect_error([] { parse<FullAttrs>("shape=[2] value=1 dtype=f33"); }, {"dtype = f33 is no dtype (f64, f32,"});
  expect_error([] { parse<TransferAttrs>("device=cuda:256"); }, {"device = cuda:256 is no device (cpu, meta, cuda"});
  expect_error([] { parse<ReduceAttrs>("dims=1 keep=yes"); }, {"keep = yes is no truth value (true, false)"});
  expect_error([] { parse<EmbeddingAttrs>("first_id=3"); }, {"total_ids is missing"});
  expect_error([] { parse<UnitAttrs>("unit=x pieces=[{piece=1 offset=z}]"); },
               {"offset = z}] is no integer; attributes are piece, offset, shape"});
  expect_error([] { parse<UnitAttrs>("unit=\"x pieces=[]"); }, {"is no name in quotes"});
}

// Reading asks no rank: the group is looked for where a call needs it.
TEST(ParseAttrs, GroupsAreNames) {
  constexpr std::string_view kText = "group=dp#1 kind=0 root=0 rows=4 dim=0 split=0";
  EXPECT_EQ(parse<CollectiveAttrs>(kText).as<CollectiveAttrs>().group, "dp#1");
  EXPECT_EQ(parse<CollectiveAttrs>(kText.substr(kText.find(' '))).as<CollectiveAttrs>().group, "");
}

// Whatever stands in a text: it is refused by an Error, or it says something, which prints and reads back.
TEST(ParseAttrs, NoTextBreaksIt) {
  std::vector<std::pair<const AttrKind*, std::string>> texts{{&attr_kind<UnitAttrs>, Attrs(a_unit()).print()},
                                                             {&attr_kind<TwoFloats>, "wide=1e300 narrow=-0"}};
  for (const OpCase& c : op_cases())
    if (!c.attrs.empty() && texts.back().second != c.attrs.print()) texts.emplace_back(c.attrs.kind(), c.attrs.print());
  constexpr std::string_view kPieces = " =,[]{}\"\\0123456789-.einfatrush:#\n";
  std::mt19937 random(11);
  const auto below = [&](std::size_t n) { return std::uniform_int_distribution<std::size_t>(0, n - 1)(random); };
  int num_read = 0;
  for (int i = 0; i < 20'000; ++i) {
    const auto& [kind, original] = texts[below(texts.size())];
    std::string text = original;
    for (std::size_t changes = 1 + below(3); changes > 0 && !text.empty(); --changes) {
      const std::size_t at = below(text.size());
      switch (below(4)) {
        case 0: text.erase(at, 1 + below(4)); break;
        case 1: text.insert(at, 1, kPieces[below(kPieces.size())]); break;
        case 2: text[at] = kPieces[below(kPieces.size())]; break;
        default: text += text.substr(at, 8); break;
      }
    }
    try {
      const Attrs read = parse_attrs(*kind, text);
      EXPECT_TRUE(parse_attrs(*kind, read.print()) == read) << text;
      ++num_read;
    } catch (const Error& error) { EXPECT_FALSE(error.message().empty()); }
  }
  EXPECT_GT(num_read, 100);
}

}  // namespace
}  // namespace sherd::testing
