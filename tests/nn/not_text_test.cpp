// Files that are no text. Oracle: the formats' published first bytes, written out here.
#include "nn/data/not_text.h"

#include <string>
#include <vector>

#include "tests/support/expect_error.h"
#include "tests/support/temp_dir.h"

namespace sherd::testing {
namespace {

using namespace std::string_literals;

struct Case {
  std::string name, bytes;
  std::vector<std::string> parts;  ///< of the error
};

TEST(NotText, IsNamedWithWhatReadsIt) {
  const std::string rest = "some text that follows";
  const Case cases[] = {
      {"m.safetensors", "\x40\0\0\0\0\0\0\0{\"w\":"s + rest, {"safetensors", "eval --tokens"}},
      {"t.gz", "\x1F\x8B\x08" + rest, {"gzip", "gunzip"}},
      {"t.zst", "\x28\xB5\x2F\xFD" + rest, {"zstd", "unzstd"}},
      {"t.xz", "\xFD"s + "7zXZ\0"s + rest, {"xz", "unxz"}},
      {"t.pt", "PK\x03\x04" + rest, {"zip", "torch.save"}},
      {"none.zip", "PK\x05\x06" + rest, {"empty zip"}},
      {"t.parquet", "PAR1" + rest, {"parquet", "column of text"}},
      {"two.pkl", "\x80\x02" + rest, {"pickle"}},
      {"five.pkl", "\x80\x05" + rest, {"pickle"}},
      {"t.npy", "\x93NUMPY" + rest, {"NumPy", "token ids"}},
      {"gpt2", "\x88\xD8\x34\x01" + rest, {"llm.c", "20240520", "give the text"}},
      {"llama3", "\xA1\xD9\x34\x01" + rest, {"llm.c", "20240801"}},
      {"TRAIN.BIN", rest, {"TRAIN.BIN", "token ids"}},
      {"train.bin", rest, {"train.bin", "token ids"}},
      {"wide.txt", "w\0i\0d\0e\0"s, {"NUL", "UTF-16", "iconv"}},
      {"late.txt", std::string(65'535, 'a') + '\0', {"NUL"}},
  };
  const TempDir dir;
  for (const auto& [name, bytes, parts] : cases) {
    SCOPED_TRACE(name);
    const TextFiles file = TextFiles::open(dir.write("one/" + name, bytes));
    expect_error([&] { check_is_text(file); }, {name, "--vocabulary bytes"});
    for (const std::string& part : parts) expect_error([&] { check_is_text(file); }, {part});
  }
}

TEST(NotText, TextIsNot) {
  const TempDir dir;
  const std::vector<std::string> texts = {"a",    "{\"a\": 1}", "PK yard",          "PARAGRAPH",
                                          "7zXZ", "12345678{}", "\xEF\xBB\xBFtext", "\xE9t\xE9 in Latin-1"};
  for (std::size_t i = 0; i < texts.size(); ++i) dir.write(fmt::format("d/{}.txt", i), texts[i]);
  std::string late(65'536, 'a');
  late.push_back('\0');
  dir.write("d/late.txt", late);
  dir.write("d/binary", "a name without a dot");
  dir.write("d/empty.bin", "");
  check_is_text(TextFiles::open(dir / "d"));
}

TEST(NotText, OneOfAFolderIsNamed) {
  const TempDir dir;
  for (int i = 0; i < 20; ++i) dir.write(fmt::format("d/{:02}.txt", i), "text");
  dir.write("d/10/notes.gz", "\x1F\x8B\x08");
  expect_error([&] { check_is_text(TextFiles::open(dir / "d")); }, {dir / "d/10/notes.gz", "gzip"});
}

}  // namespace
}  // namespace sherd::testing
