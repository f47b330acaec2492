// Oracle: the full text held in memory and split by hand.
#include "nn/data/token_data.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include <gtest/gtest.h>

#include "nn/checkpoint/format/checksum.h"
#include "nn/data/utf8.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_dir.h"
#include "tests/support/test_data.h"

namespace sherd {
namespace {

using testing::expect_error;
using testing::TempDir;
namespace fs = std::filesystem;
using Kind = Vocabulary::Kind;

std::vector<std::int32_t> read(const TokenData& data, std::int64_t position, std::int64_t count) {
  std::vector<std::int32_t> out(static_cast<std::size_t>(count));
  data.read(position, out);
  return out;
}

std::string read_text(const TokenData& data) { return data.vocabulary().decode(read(data, 0, data.num_tokens())); }

// ---- UTF-8 and vocabularies ----

TEST(Utf8, AcceptsExactlyTheWellFormedSequences) {
  // Table 3-7 of the Unicode standard, at its borders.
  const std::map<std::string, std::uint32_t> good = {
      {std::string(1, '\0'), 0},     {"\x7F", 0x7F},           {"\xC2\x80", 0x80},
      {"\xDF\xBF", 0x7FF},           {"\xE0\xA0\x80", 0x800},  {"\xED\x9F\xBF", 0xD7FF},
      {"\xEE\x80\x80", 0xE000},      {"\xEF\xBF\xBF", 0xFFFF}, {"\xF0\x90\x80\x80", 0x10000},
      {"\xF4\x8F\xBF\xBF", 0x10FFFF}};
  for (const auto& [text, code_point] : good) {
    EXPECT_EQ(decode_utf8(text).code_point, code_point);
    EXPECT_EQ(decode_utf8(text).bytes, text.size());
    EXPECT_EQ(decode_utf8(text + "x").bytes, text.size());
    std::string encoded;
    append_utf8(encoded, code_point);
    EXPECT_EQ(encoded, text);
    for (std::size_t size = 1; size < text.size(); ++size) {
      EXPECT_EQ(decode_utf8(text.substr(0, size)).bytes, 0u);
      EXPECT_TRUE(decode_utf8(text.substr(0, size)).cut_short);
    }
  }
  for (const char* bad : {"\x80", "\xBF", "\xC0\x80", "\xC1\xBF", "\xC2\x7F", "\xE0\x9F\xBF", "\xED\xA0\x80",
                          "\xF0\x8F\xBF\xBF", "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xFF", "\xE1\x80\x7F"}) {
    EXPECT_EQ(decode_utf8(bad).bytes, 0u) << bad;
    EXPECT_FALSE(decode_utf8(bad).cut_short) << bad;
  }
  EXPECT_EQ(find_invalid_utf8("ab\xC3\xA9\xFF"), 4u);
  EXPECT_EQ(find_invalid_utf8("ab\xC3\xA9"), std::string_view::npos);
}

TEST(Vocabulary, CharactersAreSortedByCodePoint) {
  const auto v = Vocabulary::chars({'\n', 'a', 0xE9, 0x1F600});
  EXPECT_EQ(v.size(), 4);
  EXPECT_EQ(v.encode("a\u00e9\n\U0001F600"), (std::vector<std::int32_t>{1, 2, 0, 3}));
  EXPECT_EQ(v.decode(std::vector<std::int32_t>{3, 2, 1}), "\U0001F600\u00e9a");
  EXPECT_EQ(Vocabulary::from_text(v.to_text()), v);
  expect_error([&] { v.encode("aab"); }, {"'b'", "byte 2"});
  expect_error([&] { v.encode("a\u00e8"); }, {"U+00E8", "byte 1"});
  expect_error([&] { v.encode("a\xFF"); }, {"UTF-8", "byte 1"});
  expect_error([&] { v.decode(std::vector<std::int32_t>{4}); }, {"token 4", "4 tokens"});
  EXPECT_THROW(v.decode(std::vector<std::int32_t>{-1}), Error);
}

TEST(Vocabulary, BytesTakeAnything) {
  const auto v = Vocabulary::bytes();
  EXPECT_EQ(v.size(), 256);
  EXPECT_EQ(v.encode("a\xFF"), (std::vector<std::int32_t>{97, 255}));
  EXPECT_EQ(v.decode(std::vector<std::int32_t>{255, 0}), std::string("\xFF\0", 2));
  EXPECT_EQ(Vocabulary::from_text("bytes"), v);
  EXPECT_FALSE(v == Vocabulary::chars({'a'}));
}

TEST(Vocabulary, NonsenseIsRefused) {
  EXPECT_THROW(Vocabulary::chars({}), Error);
  expect_error([] { Vocabulary::chars({'b', 'a'}); }, {"'b'", "'a'"});
  EXPECT_THROW(Vocabulary::chars({'a', 0x110000}), Error);
  EXPECT_THROW(Vocabulary::from_text("words"), Error);
  EXPECT_THROW(Vocabulary::from_text("chars a\xFF"), Error);
  expect_error([] { vocabulary_kind_from_name("words"); }, {"\"words\"", "bytes", "chars"});
}

// ---- files ----

TEST(TextFiles, FolderIsReadInBytewiseOrderWithoutLinks) {
  const TempDir dir;
  dir.write("corpus/b.txt", "4");
  dir.write("corpus/a/z.txt", "3");
  dir.write("corpus/a.txt", "2");  // '.' sorts before '/'
  dir.write("corpus/B.txt", "1");
  dir.write("corpus/\xC3\xA9.txt", "5");  // above all ASCII
  dir.write("corpus/empty", "");
  dir.write("elsewhere/c.txt", "x");
  fs::create_symlink(dir / "elsewhere/c.txt", dir / "corpus/link.txt");
  fs::create_directory_symlink(dir / "elsewhere", dir / "corpus/linked");
  const auto data = TokenData::open(dir / "corpus", Kind::bytes);
  EXPECT_EQ(read_text(data), "12345");
  EXPECT_EQ(data.files().files().size(), 5u);
}

TEST(TextFiles, FingerprintSeesNamesAndSizes) {
  const TempDir dir;
  dir.write("d/a", "12");
  const auto print = [&] { return TextFiles::open(dir / "d").fingerprint(); };
  const auto first = print();
  EXPECT_EQ(print(), first);
  dir.write("d/a", "123");
  const auto resized = print();
  fs::rename(dir / "d/a", dir / "d/b");
  EXPECT_NE(resized, first);
  EXPECT_NE(print(), resized);
}

// The published value of XXH64 for no bytes, and for "abc" (xxhash.com), is that of the checksum's own test.
TEST(TextFiles, TheContentHashSeesEveryByteOfSmallData) {
  const TempDir dir;
  const std::string text = fmt::format("{:0>3000000}", 7);  // more than two reads
  dir.write("d/a", text.substr(0, 1'500'001));
  dir.write("d/b", text.substr(1'500'001));
  const auto hash = [&] { return TextFiles::open(dir / "d").content_hash(); };
  const ContentHash first = hash();
  EXPECT_FALSE(first.is_sampled());
  EXPECT_EQ(first.value, ckpt::checksum(text)) << "of the run of bytes, whatever the files";
  EXPECT_EQ(first.to_text(), ckpt::checksum_text(first.value));
  for (const std::size_t at : {std::size_t{0}, std::size_t{777'777}, std::size_t{1'048'576}, std::size_t{1'500'000}}) {
    std::string changed = text.substr(0, 1'500'001);
    changed[at] = 'x';
    dir.write("d/a", changed);
    EXPECT_NE(hash().value, first.value) << at;
    EXPECT_EQ(hash().hashed_bytes, first.hashed_bytes);
  }
}

TEST(TextFiles, TheContentHashOfHugeDataIsOfSpreadBlocks) {
  const TempDir dir;
  constexpr std::int64_t kSampled = TextFiles::kSampledBlocks * TextFiles::kBlockBytes, kSize = kSampled + (8 << 20);
  const std::string path = dir.write("t.txt", "first");
  fs::resize_file(path, kSize);  // the rest is a hole
  const auto data = TextFiles::open(path);
  const ContentHash hash = data.content_hash(/*whole_bytes=*/1 << 20);
  EXPECT_TRUE(hash.is_sampled());
  EXPECT_EQ(hash.hashed_bytes, kSampled);
  EXPECT_EQ(hash.all_bytes, kSize);
  EXPECT_EQ(hash.to_text(), ckpt::checksum_text(hash.value) + " of 67108864 bytes");
  EXPECT_EQ(data.content_hash(kSize).hashed_bytes, kSize) << "what may be read whole is";
  const auto changed_at = [&](std::int64_t at) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(at).put('x').flush();
    const bool is_seen = data.content_hash(1 << 20).value != hash.value;
    file.seekp(at).put(at < 5 ? "first"[at] : '\0');
    return is_seen;
  };
  EXPECT_TRUE(changed_at(4));
  EXPECT_TRUE(changed_at(kSize - 1));
  int seen = 0;  // of changes everywhere as many as the share of the bytes that is hashed
  for (int i = 1; i <= 20; ++i) seen += changed_at(kSize / 21 * i + 31 * i) ? 1 : 0;
  EXPECT_GT(seen, 12);
  EXPECT_EQ(data.content_hash(1 << 20).value, hash.value);
}

TEST(TextFiles, IdentityChangesWithTheFileNotWithThePath) {
  const TempDir dir;
  const std::string path = dir.write("d/t.txt", "some text");
  dir.write("e/t.txt", "some text");
  const std::uint64_t first = TextFiles::open(path).identity();
  EXPECT_EQ(TextFiles::open(dir / "d").identity(), first);
  EXPECT_NE(TextFiles::open(dir / "e/t.txt").identity(), first) << "a copy";
  const auto before = fs::last_write_time(path);
  dir.write("d/t.txt", "same size");
  fs::last_write_time(path, before);
  EXPECT_NE(TextFiles::open(path).identity(), first) << "the system notes that the time was set";
  const TextFiles open = TextFiles::open(path);
  fs::remove(path);
  expect_error([&] { open.identity(); }, {"t.txt", "No such file"});
  expect_error([&] { open.content_hash(); }, {"t.txt", "No such file"});
}

TEST(TextFiles, BadPlacesAreNamed) {
  const TempDir dir;
  fs::create_directory(dir / "none");
  fs::create_symlink("/dev/null", dir / "none/link");
  dir.write("empty.txt", "");
  dir.write("hollow/empty.txt", "");
  const auto open = [](const std::string& path) { TokenData::open(path, Kind::bytes); };
  expect_error([&] { open(dir / "absent"); }, {"absent", "no"});
  expect_error([&] { open(dir / "none"); }, {"none", "no regular files"});
  expect_error([&] { open(dir / "empty.txt"); }, {"empty.txt", "is empty"});
  expect_error([&] { open(dir / "hollow"); }, {"hollow", "is empty"});
  expect_error([&] { open("/dev/null"); }, {"/dev/null", "neither"});
}

TEST(TextFiles, FileThatShrinksOrGoesIsAnError) {
  const TempDir dir;
  const std::string path = dir.write("t.txt", std::string(10'000, 'a'));
  const auto bytes = TokenData::open(path, Kind::bytes), chars = TokenData::open(path, Kind::chars);
  fs::resize_file(path, 5'000);
  EXPECT_EQ(read(bytes, 4'000, 1'000), std::vector<std::int32_t>(1'000, 'a'));
  for (const TokenData* data : {&bytes, &chars})
    expect_error([&] { read(*data, 4'000, 1'001); }, {"t.txt", "shrank", "10000", "5000"});
  fs::remove(path);
  expect_error([&] { read(bytes, 0, 1); }, {"t.txt", "No such file"});
}

// ---- tokens ----

TEST(TokenData, ReadsAcrossFiles) {
  const TempDir dir;
  std::string all;
  for (int i = 0; i < 20; ++i) {
    const std::string part(static_cast<std::size_t>(i % 4 + 1), static_cast<char>('a' + i));
    dir.write(fmt::format("d/{:02}", i), part);
    all += part;
  }
  const auto data = TokenData::open(dir / "d", Kind::bytes);
  ASSERT_EQ(data.num_tokens(), static_cast<std::int64_t>(all.size()));
  for (std::size_t from = 0; from <= all.size(); ++from)
    for (std::size_t count = 0; from + count <= all.size(); ++count)
      EXPECT_EQ(
          Vocabulary::bytes().decode(read(data, static_cast<std::int64_t>(from), static_cast<std::int64_t>(count))),
          all.substr(from, count));
  expect_error([&] { read(data, data.num_tokens(), 1); }, {"asked for"});
  EXPECT_THROW(read(data, -1, 1), Error);
}

TEST(TokenData, CharactersOfAnyLengthAreFoundByPosition) {
  const TempDir dir;
  const std::u32string pattern = U"a\u00e9\u20ac\U0001F600\n";
  std::vector<std::uint32_t> points;
  std::string text;
  // Two files of more than one scan block (1 MiB), so that characters lie across block and file borders.
  for (const char* file : {"d/1", "d/2"}) {
    text.clear();
    for (std::size_t i = 0; text.size() < (std::size_t{1} << 20) + 77; ++i) {
      points.push_back(pattern[(i * i + i / 7) % pattern.size()]);
      append_utf8(text, points.back());
    }
    dir.write(file, text);
  }
  const auto data = TokenData::open(dir / "d", Kind::chars);
  EXPECT_EQ(data.vocabulary(), Vocabulary::chars({'\n', 'a', 0xE9, 0x20AC, 0x1F600}));
  const auto total = static_cast<std::int64_t>(points.size());
  ASSERT_EQ(data.num_tokens(), total);
  const auto expected = [&](std::int64_t from, std::int64_t count) {
    std::vector<std::int32_t> tokens;
    for (std::int64_t i = from; i < from + count; ++i)
      tokens.push_back(data.vocabulary().token(points[static_cast<std::size_t>(i)]));
    return tokens;
  };
  EXPECT_EQ(read(data, 0, total), expected(0, total));
  for (std::int64_t from = 0; from + 65 <= total; from += 997) EXPECT_EQ(read(data, from, 65), expected(from, 65));
  for (const std::int64_t from : {511, 512, 513}) EXPECT_EQ(read(data, from, 1), expected(from, 1));
  EXPECT_EQ(read(data, total - 1, 1), expected(total - 1, 1));
}

TEST(TokenData, InvalidUtf8NamesFileAndOffset) {
  const TempDir dir;
  dir.write("d/1", "fine");
  dir.write("d/2", "ab\xC3\xA9\xC3");  // cut at the end of its file, although another follows
  dir.write("d/3", "\xA9");
  expect_error([&] { TokenData::open(dir / "d", Kind::chars); }, {"/2\"", "byte 4", "bytes"});
  EXPECT_EQ(TokenData::open(dir / "d", Kind::bytes).num_tokens(), 10);
}

TEST(TokenData, GivenVocabularyMustCoverTheData) {
  const TempDir dir;
  dir.write("d/1", "abab");
  dir.write("d/2", "ac");
  expect_error([&] { TokenData::open(dir / "d", Vocabulary::chars({'a', 'b'})); }, {"/2\"", "'c'", "byte 1"});
  const auto data = TokenData::open(dir / "d", Vocabulary::chars({'a', 'b', 'c', 'd'}));
  EXPECT_EQ(data.vocabulary().size(), 4);
  EXPECT_EQ(read(data, 3, 3), (std::vector<std::int32_t>{1, 0, 2}));
}

TEST(TokenData, MoreThanFourGigabytes) {
  const TempDir dir;
  dir.write("d/a", "begin");
  dir.write("d/b", "");
  dir.write("d/c", "end");
  constexpr std::int64_t kHole = (std::int64_t{5} << 30) + 1;
  fs::resize_file(dir / "d/b", static_cast<std::uintmax_t>(kHole));  // sparse: takes no disk
  const auto data = TokenData::open(dir / "d", Kind::bytes);
  EXPECT_EQ(data.num_tokens(), kHole + 8);
  EXPECT_EQ(read(data, kHole + 4, 4), (std::vector<std::int32_t>{0, 'e', 'n', 'd'}));
  EXPECT_EQ(data.num_train(), (kHole + 8) * 9 / 10);
}

// ---- windows ----

/// Bytes 0, 1, ..., count - 1 (below 256), so that a token is its position.
TokenData counting(const TempDir& dir, int count) {
  std::string text;
  for (int i = 0; i < count; ++i) text += static_cast<char>(i);
  return TokenData::open(dir.write("count", text), Kind::bytes);
}

TEST(TokenData, FirstNineTenthsTrain) {
  const TempDir dir;
  for (const int count : {1, 9, 10, 11, 19, 99, 101, 255}) {
    const auto data = counting(dir, count);
    EXPECT_EQ(data.num_train(), count * 9 / 10) << count;
    EXPECT_EQ(data.num_train() + data.num_validation(), count);
  }
}

TEST(TokenData, ValidationWindowsLieSideBySide) {
  const TempDir dir;
  const auto data = counting(dir, 200);          // validation: 180 .. 199
  EXPECT_EQ(data.num_validation_windows(4), 4);  // 4 x 4 inputs and a target after each; 3 left
  EXPECT_EQ(data.num_validation_windows(19), 1);
  EXPECT_EQ(data.num_validation_windows(20), 0);
  std::vector<std::int32_t> window(5);
  for (int i = 0; i < 4; ++i) {
    data.validation_window(i, window);
    for (int t = 0; t < 5; ++t) EXPECT_EQ(window[static_cast<std::size_t>(t)], 180 + 4 * i + t);
  }
  EXPECT_THROW(data.validation_window(4, window), Error);
  EXPECT_THROW(data.validation_window(-1, window), Error);
}

TEST(TokenData, TrainingWindowsReachAllOfTheTrainingPartAndNothingElse) {
  const TempDir dir;
  const auto data = counting(dir, 40);  // train: 0 .. 35, windows of 5 start at 0 .. 31
  std::map<std::int32_t, int> starts;
  std::vector<std::int32_t> window(5);
  constexpr int kSteps = 100, kSamples = 64;
  for (int step = 0; step < kSteps; ++step)
    for (int sample = 0; sample < kSamples; ++sample) {
      data.training_window(7, step, sample, window);
      ++starts[window[0]];
      for (int t = 1; t < 5; ++t) EXPECT_EQ(window[static_cast<std::size_t>(t)], window[0] + t);
    }
  ASSERT_EQ(starts.size(), 32u);
  EXPECT_EQ(starts.begin()->first, 0);
  EXPECT_EQ(starts.rbegin()->first, 31);
  // Each start is drawn 200 times in the mean, deviation 13.9: five deviations.
  for (const auto& [start, count] : starts) EXPECT_NEAR(count, 200, 70) << start;
}

TEST(TokenData, WindowsAreAFunctionOfSeedStepAndSample) {
  constexpr std::int64_t kChoices = std::int64_t{1} << 40;
  EXPECT_EQ(draw_window(1, 2, 3, kChoices), draw_window(1, 2, 3, kChoices));
  std::set<std::int64_t> drawn;
  const std::int64_t big = std::int64_t{1} << 32;
  for (const std::int64_t seed : {std::int64_t{0}, std::int64_t{1}, big})
    for (const std::int64_t step : {std::int64_t{0}, std::int64_t{1}, big})
      for (const std::int64_t sample : {std::int64_t{0}, std::int64_t{1}, big})
        drawn.insert(draw_window(static_cast<std::uint64_t>(seed), step, sample, kChoices));
  EXPECT_EQ(drawn.size(), 27u);
  EXPECT_EQ(draw_window(5, 6, 7, 1), 0);
}

TEST(TokenData, SequenceMustFitBothParts) {
  const TempDir dir;
  const auto data = counting(dir, 100);  // 90 + 10
  EXPECT_NO_THROW(data.check_sequence(9));
  expect_error([&] { data.check_sequence(10); }, {"10 tokens", "validation", "10 of 100"});
  expect_error([&] { data.check_sequence(90); }, {"90 tokens", "training", "90 of 100"});
  expect_error([&] { data.check_sequence(0); }, {"at least 1"});
  std::vector<std::int32_t> window(91);
  EXPECT_THROW(data.training_window(1, 0, 0, window), Error);
}

TEST(TokenData, TinyShakespeareIsWhatItsRecipeSays) {
  const auto path = testing::test_data("tinyshakespeare.txt");
  if (!path) GTEST_SKIP() << testing::no_test_data("tinyshakespeare.txt");
  const auto data = TokenData::open(*path, Kind::chars);
  // The figures that nanoGPT's data/shakespeare_char/prepare.py prints.
  EXPECT_EQ(data.num_tokens(), 1115394);
  EXPECT_EQ(data.vocabulary().size(), 65);
  EXPECT_EQ(data.num_train(), 1003854);
  EXPECT_EQ(data.num_validation(), 111540);
  EXPECT_EQ(data.vocabulary().decode(read(data, 0, 14)), "First Citizen:");
}

}  // namespace
}  // namespace sherd
