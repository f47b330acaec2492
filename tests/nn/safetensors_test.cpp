// Oracle: the format's specification, spelled out byte by byte in make_file(); XXH64's published test values.
#include "nn/checkpoint/format/safetensors.h"

#include <sys/stat.h>

#include <cstring>
#include <filesystem>
#include <numeric>

#include <gtest/gtest.h>

#include "nn/checkpoint/format/checksum.h"
#include "tests/support/expect_error.h"
#include "tests/support/file_size_limit.h"
#include "tests/support/temp_dir.h"

namespace sherd {
namespace {

using namespace ckpt;

using testing::expect_error;
using testing::FileSizeLimit;
using testing::TempDir;

std::string length_bytes(std::uint64_t length) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes += static_cast<char>(length >> (8 * i) & 0xFF);
  return bytes;
}

/// A file by the specification: header length, header, data.
std::string make_file(const std::string& header, const std::string& data) {
  return length_bytes(header.size()) + header + data;
}

std::string text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::string bytes_of(const SafetensorsFile& file, std::string_view name) {
  const TensorEntry& entry = file.at(name);
  std::string bytes(static_cast<std::size_t>(entry.bytes), '\0');
  file.read(entry, 0, std::as_writable_bytes(std::span(bytes)));
  return bytes;
}

TensorBytes tensor(std::string name, DType dtype, const Shape& shape, const std::string& bytes) {
  return {{std::move(name), dtype, shape}, std::as_bytes(std::span(bytes))};
}

class Safetensors : public ::testing::Test {
 protected:
  SafetensorsFile open(const std::string& contents) {
    return SafetensorsFile::open(dir_.write("x.safetensors", contents));
  }
  void expect_refused(const std::string& contents, std::initializer_list<std::string_view> parts) {
    expect_error([&] { open(contents); }, {"x.safetensors"});
    expect_error([&] { open(contents); }, parts);
  }
  TempDir dir_;
};

TEST_F(Safetensors, ReadsAFileMadeByHand) {
  const auto file = open(make_file(R"({"__metadata__":{"note":"by hand"},)"
                                   R"("b":{"dtype":"U8","shape":[3],"data_offsets":[8,11]},)"
                                   R"("a":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]},)"
                                   R"("s":{"dtype":"BOOL","shape":[],"data_offsets":[11,12]},)"
                                   R"("e":{"dtype":"I64","shape":[0,4],"data_offsets":[12,12]}}   )",
                                   std::string("\0\0\x80\x3F\0\0\0\x40", 8) + "xyz\x01"));
  ASSERT_EQ(file.tensors().size(), 4u);
  EXPECT_EQ(file.tensors()[0].name, "a");
  EXPECT_EQ(file.at("a").shape, (Shape{2, 1}));
  float values[2];
  std::memcpy(values, bytes_of(file, "a").data(), 8);
  EXPECT_EQ(values[0], 1.0f);
  EXPECT_EQ(values[1], 2.0f);
  EXPECT_EQ(bytes_of(file, "b"), "xyz");
  EXPECT_EQ(file.at("s").dtype, DType::boolean);
  EXPECT_TRUE(file.at("s").shape.empty());
  EXPECT_EQ(file.at("e").bytes, 0);
  EXPECT_EQ(file.metadata().at("note"), "by hand");
  EXPECT_EQ(file.find("c"), nullptr);
  expect_error([&] { file.at("c"); }, {"x.safetensors", "\"c\""});
}

TEST_F(Safetensors, F167_WritesWhatTheSpecificationSays) {
  const std::string path = dir_ / "w.safetensors";
  write_safetensors(path,
                    std::vector{tensor("u", DType::u8, {3}, "xyz"), tensor("h", DType::bf16, {2}, "ABCD"),
                                tensor("d", DType::f64, {1}, "12345678")},
                    {{"k", "v"}});
  // Wide dtypes first, header padded to a multiple of 8 bytes.
  std::string header =
      R"({"__metadata__":{"k":"v"},"d":{"dtype":"F64","shape":[1],"data_offsets":[0,8]},)"
      R"("h":{"dtype":"BF16","shape":[2],"data_offsets":[8,12]},"u":{"dtype":"U8","shape":[3],"data_offsets":[12,15]}})";
  header.append((8 - header.size() % 8) % 8, ' ');
  EXPECT_EQ(dir_.read("w.safetensors"), make_file(header, "12345678ABCDxyz"));
}

TEST_F(Safetensors, EveryDTypeSurvivesTheRoundTrip) {
  const std::string bytes = "0123456789abcdef";
  std::vector<TensorBytes> tensors;
  for (int i = 0; i < kNumDTypes; ++i) {
    const auto dtype = static_cast<DType>(i);
    const auto size = static_cast<std::size_t>(2 * byte_size(dtype));
    tensors.push_back({{std::string(name(dtype)), dtype, {2, 1}}, std::as_bytes(std::span(bytes)).first(size)});
  }
  write_safetensors(dir_ / "all.safetensors", tensors);
  const auto file = SafetensorsFile::open(dir_ / "all.safetensors");
  ASSERT_EQ(file.tensors().size(), tensors.size());
  for (const TensorBytes& t : tensors) {
    EXPECT_EQ(file.at(t.name).dtype, t.dtype);
    EXPECT_EQ(bytes_of(file, t.name), text(t.bytes));
    EXPECT_EQ(file.at(t.name).offset % byte_size(t.dtype), 0) << t.name;
  }
}

TEST_F(Safetensors, NoTensorsIsAFile) {
  write_safetensors(dir_ / "none.safetensors", {});
  EXPECT_TRUE(SafetensorsFile::open(dir_ / "none.safetensors").tensors().empty());
}

TEST_F(Safetensors, TruncationAnywhereIsAnError) {
  const std::string whole =
      make_file(R"({"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}})", std::string(16, 'd'));
  EXPECT_NO_THROW(open(whole));
  for (std::size_t size = 0; size < whole.size(); ++size)
    EXPECT_THROW(open(whole.substr(0, size)), Error) << size << " bytes";
  expect_refused(whole.substr(0, whole.size() - 1), {"\"a\"", "end at 16", "holds 15", "truncated"});
}

TEST_F(Safetensors, AFileCutShortWhileOpenIsAnError) {
  const auto file = open(make_file(R"({"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}})", std::string(16, 'd')));
  const TensorEntry& a = file.at("a");
  std::filesystem::resize_file(file.path(), static_cast<std::uintmax_t>(a.offset + 10));
  std::string bytes(8, '\0');
  file.read(a, 2, std::as_writable_bytes(std::span(bytes)));
  EXPECT_EQ(bytes, "dddddddd");
  expect_error([&] { bytes_of(file, "a"); }, {"x.safetensors", "cut short", "\"a\"", std::to_string(a.offset + 10)});
  expect_error([&] { file.read(a, 10, std::as_writable_bytes(std::span(bytes))); }, {"\"a\"", "10 to 18", "16"});
}

TEST_F(Safetensors, TheWriterWantsExactlyItsTensors) {
  const std::vector<TensorInfo> infos{{"z", DType::u8, {2}}, {"a", DType::u8, {1}}};
  const std::string path = dir_ / "parts.safetensors";
  SafetensorsWriter writer(path, infos);
  writer.write(std::as_bytes(std::span("xy", 2)));
  expect_error([&] { writer.commit(); }, {"parts.safetensors", "1 bytes", "not written"});
  expect_error([&] { writer.write(std::as_bytes(std::span("zz", 2))); },
               {"parts.safetensors", "2 bytes", "1 are left"});
  writer.write(std::as_bytes(std::span("z", 1)));
  writer.commit();
  const auto file = SafetensorsFile::open(path);
  EXPECT_EQ(file.tensors()[0].name, "z") << "the order given";
  EXPECT_EQ(bytes_of(file, "z") + bytes_of(file, "a"), "xyz");
}

TEST_F(Safetensors, HeadersThatLieAreRefused) {
  const auto one = [](const std::string& entry) { return make_file("{\"w\":" + entry + "}", "12345678"); };
  EXPECT_NO_THROW(open(one(R"({"dtype":"F32","shape":[2],"data_offsets":[0,8]})")));
  expect_refused(one(R"({"dtype":"F32","shape":[3],"data_offsets":[0,8]})"), {"\"w\"", "12 bytes", "give 8"});
  expect_refused(one(R"({"dtype":"F33","shape":[2],"data_offsets":[0,8]})"), {"\"w\"", "F33"});
  expect_refused(one(R"({"shape":[2],"data_offsets":[0,8]})"), {"\"w\"", "dtype"});
  expect_refused(one(R"({"dtype":"F32","data_offsets":[0,8]})"), {"\"w\"", "shape"});
  expect_refused(one(R"({"dtype":"F32","shape":[-2],"data_offsets":[0,8]})"), {"\"w\"", "-2"});
  expect_refused(one(R"({"dtype":"F32","shape":[2.0],"data_offsets":[0,8]})"), {"\"w\"", "2.0"});
  expect_refused(one(R"({"dtype":"F32","shape":[1,1,1,1,1,1,1,1,2],"data_offsets":[0,8]})"), {"\"w\"", "9 dims"});
  expect_refused(one(R"({"dtype":"F32","shape":[2],"data_offsets":[8,0]})"), {"\"w\"", "data_offsets"});
  expect_refused(one(R"({"dtype":"F32","shape":[2],"data_offsets":[0,16]})"), {"\"w\"", "end at 16"});
  expect_refused(one(R"({"dtype":"F32","shape":[2],"data_offsets":[0,18446744073709551615]})"), {"\"w\""});
  // 2^62 x 4 bytes wraps to 0 in 64 bits.
  expect_refused(one(R"({"dtype":"F32","shape":[4611686018427387904],"data_offsets":[0,0]})"), {"\"w\"", "larger"});
  expect_refused(one(R"([1])"), {"\"w\"", "not an object"});
}

TEST_F(Safetensors, HolesOverlapsAndRepeatedNamesAreRefused) {
  const auto file = [](const std::string& header) { return make_file(header, "12345678"); };
  const std::string a = R"("a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]})";
  expect_refused(file("{" + a + R"(,"b":{"dtype":"U8","shape":[6],"data_offsets":[2,8]}})"), {"\"b\"", "overlaps"});
  expect_refused(file("{" + a + R"(,"b":{"dtype":"U8","shape":[3],"data_offsets":[5,8]}})"), {"\"b\"", "1 bytes"});
  expect_refused(file("{" + a + "}"), {"4 bytes at its end"});
  expect_refused(file("{" + a + "," + a + "}"), {"\"a\"", "twice"});
  expect_refused(file("{" + a +
                      R"(,"b":{"dtype":"U8","shape":[4],"data_offsets":[4,8]},"\u0061":{"dtype":"U8",)"
                      R"("shape":[0],"data_offsets":[8,8]}})"),
                 {"\"a\"", "twice"});
}

TEST_F(Safetensors, HostileHeadersAreRefused) {
  expect_refused(length_bytes(UINT64_MAX) + "{}", {"18446744073709551615"});
  expect_refused(length_bytes(100'000'001) + "{}", {"100000001"});
  expect_refused(length_bytes(3) + "{}", {"truncated"});
  expect_refused(make_file("{\"w\":" + std::string(1'000'000, '['), ""), {"deeper"});
  expect_refused(make_file("{", ""), {"JSON"});
  expect_refused(make_file("[]", ""), {"object"});
  EXPECT_NO_THROW(open(make_file(" {}\n", ""))) << "the format's own library reads it";
  // The parser takes NUL for the end and skips a byte order mark, the format's own library refuses both.
  expect_refused(make_file("\xEF\xBB\xBF{}", ""), {"not valid JSON"});
  for (const std::string& tail :
       {std::string(1, '\0'), std::string("\0garbage", 8), std::string("{}"), std::string("x")})
    expect_refused(make_file("{}" + tail, ""), {"not valid JSON"});
  expect_refused(make_file("{\"\xFF\":1}", ""), {"JSON"});
  expect_refused(make_file(R"({"__metadata__":{"k":1}})", ""), {"\"k\""});
  expect_refused(make_file(R"({"__metadata__":{"k":"1","k":"1"}})", ""), {"\"k\" stands twice"});
  expect_refused(make_file(R"({"__metadata__":{},"__metadata__":{}})", ""), {"\"__metadata__\" stands twice"});
  expect_refused(make_file(R"({"__metadata__":"v"})", ""), {"\"__metadata__\" is not an object"});
}

TEST_F(Safetensors, AnotherFormatIsNamed) {
  for (const char* text : {"First Citizen:\nBefore we proceed", "        {\"a\": 1}", "short", ""})
    expect_refused(text, {"not a safetensors file"});
}

TEST_F(Safetensors, MissingFilesAndFoldersAreNamed) {
  expect_error([&] { SafetensorsFile::open(dir_ / "absent"); }, {"absent", "No such file"});
  expect_error([&] { SafetensorsFile::open(dir_.path()); }, {dir_.path(), "regular"});
  ASSERT_EQ(::mkfifo((dir_ / "pipe").c_str(), 0600), 0);
  expect_error([&] { SafetensorsFile::open(dir_ / "pipe"); }, {"pipe", "regular"});
}

TEST_F(Safetensors, WriterRefusesWhatNoReaderWouldTake) {
  const std::string path = dir_ / "bad.safetensors";
  const TensorBytes a = tensor("a", DType::f32, {2}, "12345678");
  expect_error([&] { write_safetensors(path, std::vector{a, a}); }, {"bad.safetensors", "\"a\""});
  expect_error([&] { write_safetensors(path, std::vector{tensor("a", DType::f32, {3}, "12345678")}); },
               {"\"a\"", "8 bytes", "12"});
  expect_error([&] { write_safetensors(path, std::vector{tensor("\xFF", DType::u8, {1}, "1")}); }, {"UTF-8"});
  expect_error([&] { write_safetensors(path, std::vector{tensor("__metadata__", DType::u8, {1}, "1")}); },
               {"__metadata__"});
  EXPECT_TRUE(std::filesystem::is_empty(dir_.path()));
}

TEST_F(Safetensors, FullDiskLeavesTheOldFile) {
  const std::string path = dir_ / "w.safetensors", big(1 << 20, 'b');
  write_safetensors(path, std::vector{tensor("a", DType::u8, {3}, "old")});
  const std::string before = dir_.read("w.safetensors");
  {
    const FileSizeLimit limit(100'000);
    expect_error([&] { write_safetensors(path, std::vector{tensor("a", DType::u8, {1 << 20}, big)}); },
                 {"w.safetensors", "File too large", "100000 of 10486"});
  }
  EXPECT_EQ(dir_.read("w.safetensors"), before);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(dir_.path()), {}), 1) << "the partial file is left";
}

TEST(Checksum, MatchesPublishedValues) {
  EXPECT_EQ(checksum(""), 0xEF46DB3751D8E999u);
  EXPECT_EQ(checksum("a"), 0xD24EC4F1A98C6E5Bu);
  EXPECT_EQ(checksum("abc"), 0x44BC2CF5AD770999u);
  EXPECT_EQ(checksum("Nobody inspects the spammish repetition"), 0xFBCEA83C8A378BF1u);  // stripes and all tails
}

TEST(Checksum, EveryFlippedBitShows) {
  std::string bytes(77, '\0');
  std::iota(bytes.begin(), bytes.end(), '\0');
  const std::uint64_t good = checksum(bytes);
  for (char& byte : bytes)
    for (int bit = 0; bit < 8; ++bit) {
      byte = static_cast<char>(byte ^ (1 << bit));
      EXPECT_NE(checksum(bytes), good);
      byte = static_cast<char>(byte ^ (1 << bit));
    }
}

TEST(Checksum, PartsGiveTheSumOfTheWhole) {
  std::string bytes(100, '\0');
  std::iota(bytes.begin(), bytes.end(), '\0');
  const auto all = std::as_bytes(std::span(bytes));
  for (std::size_t size = 0; size <= bytes.size(); ++size)
    for (std::size_t cut = 0; cut <= size; ++cut) {
      Checksum sum;
      sum.add(all.first(cut));
      sum.add(all.first(size).subspan(cut));
      EXPECT_EQ(sum.value(), checksum(all.first(size))) << size << " " << cut;
    }
}

TEST(Checksum, TextIsSixteenDigits) {
  EXPECT_EQ(checksum_text(0xABC), "0000000000000abc");
  EXPECT_EQ(checksum_from_text("0000000000000abc"), 0xABCu);
  EXPECT_THROW(checksum_from_text("abc"), Error);
  EXPECT_THROW(checksum_from_text("000000000000abcg"), Error);
}

}  // namespace
}  // namespace sherd
