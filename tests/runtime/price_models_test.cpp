// Models of devices and fabrics. Oracles: prices by hand, and texts that read back.
#include <gtest/gtest.h>

#include <random>

#include "runtime/exec/price_json.h"
#include "runtime/exec/strict_json.h"
#include "tests/support/expect_error.h"

namespace sherd::testing {
namespace {

constexpr std::string_view kCardModel = R"({"device": "card", "cores": 4, "memory_bytes": 80e9, "launch_s": 2e-6,
 "flops": {"bf16": {"curve": [[1e6, 1e12], [1e8, 3e12]], "source": "measured"}, "f32": 5e11},
 "attention": {"bf16": {"value": 2e12, "source": "guess"}},
 "rows": {"pointwise": 1e9}, "read_bytes_per_s": 2e9, "peak_flops": 4e12,
 "links": {"wire": {"alpha_s": 1e-6, "beta_bytes_per_s": 1e9, "nics": 2}},
 "software": {"eager": {"value": 1.5, "source": "row 1"}}, "source": "a sheet"})";

DeviceModel card_model() { return parse_device_model(kCardModel, "card.json"); }

TEST(DeviceModel, ACallTakesItsWorkAtTheRateOfItsKindAndSize) {
  const DeviceModel d = card_model();
  EXPECT_DOUBLE_EQ(d.seconds({WorkKind::contraction, DType::bf16, 1e6, 0}), 2e-6 + 1e6 / 1e12);
  EXPECT_DOUBLE_EQ(d.seconds({WorkKind::contraction, DType::bf16, 1e7, 0}), 2e-6 + 1e7 / 2e12) << "half way in log";
  EXPECT_DOUBLE_EQ(d.seconds({WorkKind::contraction, DType::bf16, 1e9, 0}), 2e-6 + 1e9 / 3e12) << "the last rate";
  EXPECT_DOUBLE_EQ(d.seconds({WorkKind::contraction, DType::bf16, 1e6, 2e9}), 2e-6 + 1) << "bytes take longer";
  EXPECT_DOUBLE_EQ(d.seconds({WorkKind::attention, DType::bf16, 2e12, 0}), 2e-6 + 1);
  EXPECT_DOUBLE_EQ(d.seconds({WorkKind::attention, DType::f32, 5e11, 0}), 2e-6 + 1) << "as products";
  EXPECT_DOUBLE_EQ(d.seconds({WorkKind::pointwise, DType::f32, 0, 1e9}), 2e-6 + 1);
  EXPECT_DOUBLE_EQ(d.seconds({WorkKind::copy, DType::f32, 0, 1e9}), 2e-6 + 0.5) << "at `read`";
  EXPECT_DOUBLE_EQ(d.seconds({WorkKind::issue, DType::f32, 0, 1e9}), 2e-6);
  EXPECT_TRUE(d.covers({WorkKind::contraction, DType::bf16, 1e7, 0}));
  EXPECT_FALSE(d.covers({WorkKind::contraction, DType::bf16, 1e9, 0}));
  expect_error([&] { d.seconds({WorkKind::contraction, DType::f16, 1, 1}); }, {"card", "no rate", "f16"});
}

TEST(DeviceModel, NumbersKeepTheirSourceAndReadBackToTheBit) {
  const DeviceModel d = card_model();
  EXPECT_EQ(d.products.at(DType::bf16).source, "measured");
  EXPECT_EQ(d.products.at(DType::f32).source, "a sheet");
  EXPECT_EQ(d.software.at("eager").source, "row 1");
  EXPECT_EQ(d.links.at("wire").nics, 2);
  const std::string text = print(d);
  EXPECT_EQ(print(parse_device_model(text, "again")), text);
}

std::string card_with(std::string_view from, std::string_view to) {
  std::string text(kCardModel);
  const std::size_t at = text.find(from);
  EXPECT_NE(at, text.npos) << from;
  return text.replace(at, from.size(), to);
}

// As a calibration stands for types that it has not measured; a file without the name is read as ever.
TEST(DeviceModel, ARateMaySayThatItIsExtrapolated) {
  const std::string curve = R"({"curve": [[1, 1e11], [1e12, 5e11]], "source": "that of bf16", "extrapolated": true})";
  for (const std::string& rate :
       {std::string(R"({"value": 5e11, "source": "that of bf16", "extrapolated": true})"), curve}) {
    const DeviceModel d = parse_device_model(card_with("\"f32\": 5e11", "\"f32\": " + rate), "card.json");
    EXPECT_TRUE(d.products.at(DType::f32).is_extrapolated);
    EXPECT_FALSE(d.products.at(DType::bf16).is_extrapolated);
    EXPECT_FALSE(d.covers({WorkKind::contraction, DType::f32, 1e7, 0}));
    EXPECT_DOUBLE_EQ(d.seconds({WorkKind::contraction, DType::f32, 1e12, 0}), 2e-6 + 2);
    EXPECT_EQ(print(parse_device_model(print(d), "again")), print(d));
  }
  EXPECT_TRUE(card_model().covers({WorkKind::contraction, DType::f32, 1e7, 0}));
}

TEST(FabricModel, MeasuredSecondsBeatTheFormula) {
  const FabricModel f = parse_fabric_model(
      R"({"fabric": "f", "alpha_s": 0, "beta_bytes_per_s": 1e9, "source": "s",
          "curves": {"gather": [[2, 1e3, 1e-3], [2, 1e6, 3e-3], [8, 1e3, 5e-3], [8, 1e6, 9e-3]]}})",
      "f.json");
  EXPECT_DOUBLE_EQ(f.seconds(Movement::gather, 2, 10), 1e-3) << "no less than the smallest";
  EXPECT_DOUBLE_EQ(f.seconds(Movement::gather, 2, 500500), 2e-3) << "linear between";
  EXPECT_DOUBLE_EQ(f.seconds(Movement::gather, 2, 1e6 + 999e3), 5e-3) << "as between the last two";
  EXPECT_DOUBLE_EQ(f.seconds(Movement::gather, 5, 1e6), 6e-3) << "half way between 2 and 8 ranks";
  EXPECT_NEAR(f.seconds(Movement::gather, 16, 1e6), 9e-3 * (15.0 / 16) / (7.0 / 8), 1e-15) << "as the formula grows";
  EXPECT_DOUBLE_EQ(f.seconds(Movement::scatter, 2, 1e6), 0.5e-3) << "no curve: the formula";
  EXPECT_DOUBLE_EQ(f.seconds(Movement::all_to_all, 2, 1e6), 0.5e-3) << "once on the wire";
  EXPECT_TRUE(f.covers(Movement::gather, 5, 1e4));
  EXPECT_FALSE(f.covers(Movement::gather, 5, 1e7));
  EXPECT_EQ(print(parse_fabric_model(print(f), "again")), print(f));
}

TEST(DeviceModel, WrongFilesAreRefusedByLineAndColumn) {
  const auto refuse = [](const std::string& text, std::initializer_list<std::string_view> parts) {
    expect_error([&] { parse_device_model(text, "card.json"); }, {"card.json: line ", ", column "});
    expect_error([&] { parse_device_model(text, "card.json"); }, parts);
  };
  refuse(card_with("\"cores\": 4", "\"coers\": 4"), {"line 1, column 29", "\"coers\"", "did you mean cores"});
  refuse(card_with("\"launch_s\": 2e-6,", ""), {"\"launch_s\" is missing"});
  refuse(card_with("[1e8, 3e12]", "[1e8, 1e15]"), {"line 2", "a curve that falls"});
  refuse(card_with("[1e8, 3e12]", "[1e5, 3e12]"), {"line 2", "after 1000000"});
  refuse(card_with("[1e8, 3e12]", "[1e8]"), {"[size, per second]"});
  refuse(card_with("\"f32\": 5e11", "\"f31\": 5e11"), {"f31"});
  refuse(card_with("\"f32\": 5e11", "\"f32\": 0"), {"more than 0"});
  refuse(card_with("\"f32\": 5e11", "\"f32\": -1"), {"-1"});
  refuse(card_with("\"f32\": 5e11", "\"f32\": 1e19"), {"1e19", "no number up to 1e+18"});
  refuse(card_with("\"f32\": 5e11", "\"f32\": 1e999"), {"no number up to"});
  refuse(card_with("\"f32\": 5e11", "\"f32\": NaN"), {"\"NaN\" is no value"});
  refuse(card_with("\"f32\": 5e11", "\"bf16\": 5e11"), {"\"bf16\" comes twice"});
  refuse(card_with("\"f32\": 5e11", R"("f32": {"value": 1, "source": "s", "extrapolated": 1})"), {"true or false"});
  refuse(card_with("\"pointwise\"", "\"pointless\""), {"pointless", "pointwise"});
  refuse(card_with("\"nics\": 2", "\"nics\": 1.5"), {"\"nics\" is 1.5", "whole number"});
  refuse(card_with("80e9", "\"many\""), {"\"memory_bytes\" is a text; give a number"});
  refuse(std::string(kCardModel).substr(0, 100), {"the text ends"});
  refuse(std::string(kCardModel) + "x", {"more after the end"});
  refuse(std::string(100, '['), {"nest deeper"});
  refuse("", {"the text ends"});
}

// Models with some bytes changed, cut or doubled: read, or an Error with its place.
TEST(DeviceModel, HostileTextsAreErrorsWithTheirPlace) {
  std::mt19937 random(36);
  int num_read = 0;
  for (int i = 0; i < 10000; ++i) {
    std::string text(kCardModel);
    for (int changes = 1 + static_cast<int>(random() % 3); changes > 0 && !text.empty(); --changes) {
      const std::size_t at = random() % text.size();
      const unsigned kind = random() % 4;
      if (kind == 0) text[at] = static_cast<char>(random() % 256);
      else if (kind == 1) text.erase(at, 1 + random() % 20);
      else if (kind == 2) text.insert(at, text.substr(random() % text.size(), 1 + random() % 30));
      else text.resize(at + 1);
    }
    try {
      parse_device_model(text, "card.json");
      ++num_read;
    } catch (const Error& error) { EXPECT_EQ(error.message().rfind("card.json: line ", 0), 0u) << error.message(); }
  }
  EXPECT_GT(num_read, 100);
}

}  // namespace
}  // namespace sherd::testing
