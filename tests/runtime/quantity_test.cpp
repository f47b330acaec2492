// Counts and bytes as people type them. Oracle: the numbers written out.
#include "runtime/tensor/quantity.h"

#include <gtest/gtest.h>

namespace sherd {
namespace {

struct Text {
  std::string_view text;
  std::optional<std::int64_t> count, bytes;
};
constexpr std::int64_t kGi = std::int64_t{1} << 30;
constexpr auto kNone = std::nullopt;
constexpr Text kTexts[] = {
    {"0", 0, 0},
    {"-4", -4, -4},
    {"1000", 1000, 1000},
    {"1e3", 1000, 1000},
    {"1E+3", 1000, 1000},
    {"2.5e3", 2500, 2500},
    {"100e-2", 1, 1},
    {"10.0", 10, 10},
    {"-1.5e1", -15, -15},
    {"0e-9", 0, 0},
    {"9223372036854775807", 9223372036854775807, 9223372036854775807},
    {"9.223372036854775807e18", 9223372036854775807, 9223372036854775807},
    // Not whole, or not a number.
    {"1.5", kNone, kNone},
    {"1000e+-3", kNone, kNone},
    {"1e-3", kNone, kNone},
    {"", kNone, kNone},
    {".", kNone, kNone},
    {"e3", kNone, kNone},
    {"1e", kNone, kNone},
    {"1.2.3", kNone, kNone},
    {"+4", kNone, kNone},
    {"--4", kNone, kNone},
    {"4x", kNone, kNone},
    {" 4", kNone, kNone},
    {"0x10", kNone, kNone},
    {"inf", kNone, kNone},
    {"nan", kNone, kNone},
    {"1e99999999999", kNone, kNone},
    // Beyond 64 bits.
    {"9223372036854775808", kNone, kNone},
    {"1e19", kNone, kNone},
    {"99999999999999999999999999", kNone, kNone},
    // With a unit.
    {"8B", kNone, 8},
    {"8K", kNone, 8000},
    {"8KB", kNone, 8000},
    {"8KiB", kNone, 8192},
    {"8Ki", kNone, 8192},
    {"3M", kNone, 3'000'000},
    {"3Mi", kNone, 3 << 20},
    {"8GB", kNone, 8'000'000'000},
    {"8GiB", kNone, 8 * kGi},
    {"2T", kNone, 2'000'000'000'000},
    {"2TiB", kNone, 2048 * kGi},
    {"1.5G", kNone, 1'500'000'000},
    {"1.5Gi", kNone, kGi + kGi / 2},
    {"0.57K", kNone, 570},  // 569.99... in doubles
    {"1.1KB", kNone, 1100},
    {"1e3K", kNone, 1'000'000},
    {"-1K", kNone, -1000},
    {"0.5B", kNone, kNone},
    {"1.1Ki", kNone, kNone},
    {"0.0001K", kNone, kNone},
    {"9000000T", kNone, 9'000'000'000'000'000'000},
    {"10000000T", kNone, kNone},
    {"8gb", kNone, kNone},
    {"8Gb", kNone, kNone},  // bits to many
    {"8 GB", kNone, kNone},
    {"8BB", kNone, kNone},
    {"8iB", kNone, kNone},
    {"GB", kNone, kNone},
    {"8GBs", kNone, kNone},
    {"8KK", kNone, kNone},
};

TEST(Quantity, CountsAndBytesAreExact) {
  for (const Text& t : kTexts) {
    EXPECT_EQ(parse_count(t.text), t.count) << t.text;
    EXPECT_EQ(parse_bytes(t.text), t.bytes) << t.text;
  }
}

TEST(Quantity, RatesNeedNotBeWhole) {
  EXPECT_EQ(parse_byte_rate("2.5e9"), 2.5e9);
  EXPECT_EQ(parse_byte_rate("0.25"), 0.25);
  EXPECT_EQ(parse_byte_rate("10GB"), 1e10);
  EXPECT_EQ(parse_byte_rate("1.5Mi"), 1.5 * 1024 * 1024);
  for (const char* text : {"", "GB", "10gb", "fast", "1,0", "10GB/s"}) EXPECT_EQ(parse_byte_rate(text), kNone) << text;
}

}  // namespace
}  // namespace sherd
