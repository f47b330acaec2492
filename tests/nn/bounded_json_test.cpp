// JSON that comes from anywhere. Oracle: what RFC 8259 calls JSON, and nlohmann's own values.
#include "nn/checkpoint/format/bounded_json.h"

#include <map>

#include <gtest/gtest.h>

#include "nn/checkpoint/format/input_file.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_dir.h"

namespace sherd {
namespace {

using namespace ckpt;

using nlohmann::json;
using testing::expect_error;

/// {"small": value, "map": {...}, "list": [...]} as what was handed over, in order.
std::string handed_over(std::string_view text) {
  std::string log;
  const auto each = [&log](std::string where) {
    return
        [&log, where](const std::string& name, const json& value) { log += where + name + "=" + value.dump() + ";"; };
  };
  read_json(text,
            {.each = each(""),
             .large = {{.name = "map", .each = each("map.")},
                       {.name = "list", .kind = JsonMembers::Kind::array, .required = false, .each = each("+")}}});
  return log;
}

TEST(BoundedJson, MembersOfLargeContainersComeOneByOne) {
  EXPECT_EQ(handed_over(R"( {"a": [1, {"map": 2}], "map": {"x": null, "y": {"list": [true]}, "x": -1.5},
                            "list": ["p", [], {"n": 1}], "b": "\u00e9"} )"),
            R"(a=[1,{"map":2}];map.x=null;map.y={"list":[true]};map.x=-1.5;+="p";+=[];+={"n":1};b=)"
            "\"\xC3\xA9\";");
  EXPECT_EQ(handed_over(R"({"map":{}})"), "");
}

TEST(BoundedJson, LargeContainersMustBeWhatIsExpected) {
  expect_error([] { handed_over("[]"); }, {"not a JSON object"});
  expect_error([] { handed_over("1"); }, {"not a JSON object"});
  expect_error([] { handed_over("{}"); }, {"no object \"map\""});
  expect_error([] { handed_over(R"({"map":[]})"); }, {"\"map\" is not an object"});
  expect_error([] { handed_over(R"({"map":"text"})"); }, {"\"map\" is not an object"});
  expect_error([] { handed_over(R"({"map":{},"list":{}})"); }, {"\"list\" is not an array"});
  expect_error([] { handed_over(R"({"map":{},"map":{}})"); }, {"\"map\" stands twice"});
}

TEST(BoundedJson, WholeTextsAreWhatTheyAre) {
  for (const char* text :
       {"null", "[]", "{}", "\"a\"", "-3", "18446744073709551615", "0.1", R"([{"a":[{"b":{}}]},true])"})
    EXPECT_EQ(parse_bounded_json(text), json::parse(text)) << text;
}

TEST(BoundedJson, WhatIsNotJsonIsRefused) {
  for (const std::string text : {"", "{", "[1,]", "{\"a\":1,}", "nul", "'a'", "[1] 2", "{}{}", "[1e999]", "\"\xFF\"",
                                 "\"\\ud800\"", "// c\n1", "NaN", "\xEF\xBB\xBF{}", "01"})
    expect_error([&] { parse_bounded_json(text); }, {"not valid JSON"});
  // The parser takes NUL for the end of its input.
  for (const std::string& text : {std::string("{}\0", 3), std::string("{}\0x", 4), std::string("\0{}", 3)})
    expect_error([&] { parse_bounded_json(text); }, {"not valid JSON"});
}

TEST(BoundedJson, BoundsHold) {
  const auto nested = [](std::size_t depth) { return std::string(depth, '[') + std::string(depth, ']'); };
  EXPECT_NO_THROW(parse_bounded_json(nested(16)));
  expect_error([&] { parse_bounded_json(nested(17)); }, {"deeper than 16"});
  expect_error([&] { parse_bounded_json(std::string(1'000'000, '[')); }, {"deeper"});
  expect_error([&] { handed_over(R"({"map":{"a":)" + nested(15) + "}}"); }, {"deeper"});
  EXPECT_NO_THROW(handed_over(R"({"map":{"a":)" + nested(14) + "}}"));
  expect_error([] { parse_bounded_json(R"({"a":[{"b":1,"c":2,"b":1}]})"); }, {"\"b\" stands twice"});

  std::string many = "[0";
  for (int i = 0; i < 100'000; ++i) many += ",0";
  expect_error([&] { parse_bounded_json(many + "]"); }, {"more than 100000"});
  many.resize(many.size() - 2);
  EXPECT_EQ(parse_bounded_json(many + "]").size(), 100'000u);
}

TEST(BoundedJson, AStringHasABound) {
  const auto text = [](std::size_t bytes) { return R"({"a":")" + std::string(bytes - 1, 'x') + R"(\"","b":"y"})"; };
  constexpr std::size_t kBound = 2 << 20;
  EXPECT_EQ(parse_bounded_json(text(kBound - 4))["b"], "y");
  expect_error([&] { parse_bounded_json(text(kBound + 1)); }, {"strings has more than 2097152 bytes"});
}

TEST(BoundedJson, LongValuesAreCutInMessages) {
  EXPECT_EQ(shown(json::array({1, "a"})), R"([1,"a"])");
  const std::string cut = shown(std::vector<int>(1000, 7));
  EXPECT_EQ(cut.size(), 103u);
  EXPECT_EQ(cut.substr(97), "7,7...");
}

TEST(BoundedJson, AFileIsReadInParts) {
  const testing::TempDir dir;
  std::string text = "[";
  for (int i = 0; i < 20'000; ++i) text += std::to_string(i) + ", ";
  const InputFile file(dir.write("x.json", "head" + text + "-1] tail"));
  const auto begin = std::int64_t{4}, end = file.bytes() - 5;
  FileText part(file, begin, end);
  std::int64_t next = 0;
  read_json(part, {.kind = JsonMembers::Kind::array, .each = [&](const std::string&, const json& value) {
                     EXPECT_EQ(value, next == 20'000 ? -1 : next);
                     ++next;
                   }});
  EXPECT_EQ(next, 20'001);
  EXPECT_EQ(read_text(file, file.bytes()), dir.read("x.json"));
  expect_error([&] { read_text(file, 100); }, {"x.json", "at most 100"});
  FileText more(file, begin, file.bytes() + 1);
  expect_error([&] { read_json(more, {.kind = JsonMembers::Kind::array}); }, {"x.json", "cut short"});
}

}  // namespace
}  // namespace sherd
