#include "nn/data/not_text.h"

#include <algorithm>
#include <array>

#include "runtime/tensor/error.h"

namespace sherd {

namespace {

using namespace std::string_view_literals;

constexpr std::string_view kTokens = "token ids are not read from it yet; give the text that they were made of";
constexpr std::string_view kArchive = "unpack it, and give the text in it";

constexpr NotText kPickle = {"is a pickle of Python", "write the text in it to a file first"};

struct Signature {
  std::size_t at;
  std::string_view bytes;
  NotText kind;
};

constexpr Signature kSignatures[] = {
    // A length of the header below 2^32 in eight bytes, and the header.
    {4,
     "\0\0\0\0{"sv,
     {"is safetensors", "sherd train reads text; sherd eval --tokens reads token ids from such files"}},
    {0, "\x1F\x8B"sv, {"is gzip", "decompress it first (gunzip)"}},
    {0, "\x28\xB5\x2F\xFD"sv, {"is zstd", "decompress it first (unzstd)"}},
    {0, "\xFD\x37zXZ\0"sv, {"is xz", "decompress it first (unxz)"}},
    {0, "PK\x03\x04"sv, {"is a zip archive, as files of torch.save are", kArchive}},
    {0, "PK\x05\x06"sv, {"is an empty zip archive", kArchive}},
    {0, "PAR1"sv, {"is parquet", "write its column of text to a file first (Python: pandas.read_parquet)"}},
    {0, "\x80\x02"sv, kPickle},
    {0, "\x80\x03"sv, kPickle},
    {0, "\x80\x04"sv, kPickle},
    {0, "\x80\x05"sv, kPickle},
    {0, "\x93NUMPY"sv, {"is an array of NumPy", kTokens}},
    {0, "\x88\xD8\x34\x01"sv, {"holds token ids of llm.c (magic 20240520)", kTokens}},
    {0, "\xA1\xD9\x34\x01"sv, {"holds token ids of llm.c (magic 20240801)", kTokens}},
};

constexpr std::string_view kBinary = ".bin";
constexpr NotText kBinaryName = {"is binary by its name, as files of token ids are", kTokens};
constexpr NotText kHasNul = {"has a NUL byte, which no text has in UTF-8",
                             "give text; UTF-16 becomes UTF-8 by iconv -f UTF-16 -t UTF-8"};

}  // namespace

std::optional<NotText> not_text(std::string_view name, std::string_view head) {
  for (const auto& [at, bytes, kind] : kSignatures)
    if (head.size() > at && head.substr(at).starts_with(bytes)) return kind;
  if (std::ranges::equal(name.substr(name.size() - std::min(name.size(), kBinary.size())), kBinary,
                         [](char a, char b) { return (a >= 'A' && a <= 'Z' ? a - 'A' + 'a' : a) == b; }))
    return kBinaryName;
  if (head.find('\0') != std::string_view::npos) return kHasNul;
  return std::nullopt;
}

void check_is_text(const TextFiles& files) {
  std::string head;
  for (const TextFiles::File& file : files.files()) {
    head.resize(static_cast<std::size_t>(std::min(file.size, kTextHeadBytes)));
    files.read(file.begin, head);
    if (const auto found = not_text(file.name, head))
      fail("the data file \"{}\" {}: {}; or ask for its bytes as they are by --vocabulary bytes", file.path,
           found->what, found->remedy);
  }
}

}  // namespace sherd
