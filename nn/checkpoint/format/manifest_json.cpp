// Both directions keep to one pass over the pieces. Names stand in the order of the alphabet: all versions define
// the checksum over the inner object with sorted names, and whoever parses and prints the file finds the same one.
#include "nn/checkpoint/format/manifest_json.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <limits>

#include "nn/checkpoint/format/bounded_json.h"
#include "nn/checkpoint/format/checksum.h"
#include "runtime/tensor/error.h"

namespace sherd::ckpt {

namespace {

using nlohmann::json;

constexpr std::string_view kFormat = "sherd checkpoint";
constexpr std::int64_t kOldestVersion = 1, kVersion = 4;
constexpr std::int64_t kFirstWithItsVersion = 4;  // in the checksum
constexpr std::size_t kMaxStates = 100'000, kMaxFiles = 10'000'000;
constexpr std::array<std::string_view, 7> kFields = {"config", "plan",       "run",       "save",
                                                     "step",   "vocabulary", "world_size"};

// ---- writing

/// With quotes and escapes.
std::string json_text(std::string_view text) { return json(text).dump(); }

/// JSON has no NaN or infinity: they are {"non_finite": "nan"}.
std::string to_json(const StateValue& value) {
  if (const auto* text = std::get_if<std::string>(&value)) return json_text(*text);
  if (const auto* integer = std::get_if<std::int64_t>(&value)) return fmt::format("{}", *integer);
  const double number = std::get<double>(value);
  if (!std::isfinite(number)) return fmt::format(R"({{"non_finite":"{}"}})", number);
  return json(number).dump();
}

/// `separator` stands between pieces.
template <class Pieces>
void append_pieces(const Pieces& pieces, std::string_view separator, std::string& text) {
  constexpr std::size_t kUsualBytes = 256;
  text.reserve(text.size() + pieces.size() * kUsualBytes);
  std::string_view before;
  for (const PieceEntry& piece : pieces) {
    fmt::format_to(std::back_inserter(text),
                   R"({}{{"at":{},"bytes":{},{}"dtype":"{}","extent":[{}],"file":{},"kind":{},"name":{},)"
                   R"("offset":[{}],{}"shape":[{}]}})",
                   before, piece.at, piece.bytes,
                   piece.checksum ? fmt::format("\"checksum\":\"{}\",", checksum_text(*piece.checksum)) : "",
                   name(piece.dtype), fmt::join(piece.box.shape, ","), json_text(piece.file), json_text(piece.kind),
                   json_text(piece.name), fmt::join(piece.box.offset, ","),
                   piece.part > 0 ? fmt::format("\"part\":{},", piece.part) : "", fmt::join(piece.shape, ","));
    before = separator;
  }
}

std::string blocks_json(const std::string& file, const BlockSums& blocks) {
  return fmt::format(R"({}:{{"bytes":{},"sums":"{}"}})", json_text(file), blocks.bytes, block_sums_text(blocks.sums));
}

// ---- reading

const json& member(const json& object, const char* key) {
  if (!object.is_object()) fail("{} is no object", shown(object));
  const auto found = object.find(key);
  check(found != object.end(), "it has no \"{}\"", key);
  return *found;
}

const std::string& read_string(const json& object, const char* key) {
  const json& value = member(object, key);
  if (!value.is_string()) fail("\"{}\" is {}, not a string", key, shown(value));
  return value.get_ref<const std::string&>();
}

std::int64_t read_integer(const json& object, const char* key) {
  const json& value = member(object, key);
  if (!value.is_number_integer()) fail("\"{}\" is {}, not an integer", key, shown(value));
  if (value.is_number_unsigned() && value.get<std::uint64_t>() > static_cast<std::uint64_t>(INT64_MAX))
    fail("\"{}\" is {}, too large", key, shown(value));
  return value.get<std::int64_t>();
}

Dims read_dims(const json& object, const char* key) {
  Dims dims;
  for (const json& value : member(object, key)) {
    if (!value.is_number_unsigned() || value.get<std::uint64_t>() > static_cast<std::uint64_t>(INT64_MAX))
      fail("\"{}\" holds {}", key, shown(value));
    dims.push_back(value.get<std::int64_t>());
  }
  return dims;
}

StateValue read_state(const std::string& key, const json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_number_float()) return value.get<double>();
  if (value.is_number_integer()) return value.get<std::int64_t>();
  if (!value.is_object() || !value.contains("non_finite")) fail("state \"{}\" is {}", key, shown(value));
  const std::string& text = read_string(value, "non_finite");
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (text == "inf") return kInfinity;
  return text == "-inf" ? -kInfinity : std::numeric_limits<double>::quiet_NaN();
}

/// One box of a tensor is enough for most ranks, and then it is not counted.
int read_part(const json& object) {
  const std::int64_t part = read_integer(object, "part");
  check(part > 0 && part <= std::numeric_limits<int>::max(), "\"part\" is {}", part);
  return static_cast<int>(part);
}

PieceEntry read_piece(const json& object) {
  PieceEntry piece;
  piece.name = read_string(object, "name");
  piece.kind = read_string(object, "kind");
  piece.dtype = dtype_from_name(read_string(object, "dtype"));
  piece.shape = read_dims(object, "shape");
  // Version 1 knew pieces of whole rows; a 0-d tensor had one.
  if (object.contains("rows"))
    piece.box = piece.shape.empty()
                    ? whole_box(piece.shape)
                    : rows_box(piece.shape, read_integer(object, "row_offset"), read_integer(object, "rows"));
  else piece.box = {read_dims(object, "offset"), read_dims(object, "extent")};
  if (object.contains("part")) piece.part = read_part(object);
  piece.file = read_string(object, "file");
  if (object.contains("checksum")) piece.checksum = checksum_from_text(read_string(object, "checksum"));
  else piece.at = read_integer(object, "at");
  piece.bytes = read_integer(object, "bytes");
  return piece;
}

/// The sums of files' blocks, by the files' names.
JsonMembers blocks_into(std::map<std::string, BlockSums, std::less<>>& blocks) {
  JsonMembers files{.name = "blocks", .required = false};
  files.each = [&blocks](const std::string& file, const json& value) {
    check(blocks.size() < kMaxFiles, "it lists more than {} files", kMaxFiles);
    try {
      BlockSums sums = block_sums_from_text(read_integer(value, "bytes"), read_string(value, "sums"));
      check(blocks.emplace(file, std::move(sums)).second, "it stands twice");
    } catch (const Error& error) { fail("the checksums of \"{}\": {}", file, error.message()); }
  };
  return files;
}

/// An array of pieces, which are appended to `pieces`. Errors say which one is wrong, counted from 0.
JsonMembers pieces_into(std::deque<PieceEntry>& pieces) {
  JsonMembers array{.name = "pieces", .kind = JsonMembers::Kind::array};
  array.each = [&pieces](const std::string&, const json& value) {
    try {
      pieces.push_back(read_piece(value));
    } catch (const Error& error) {
      const bool has_name = value.is_object() && value.contains("name");
      fail("piece {}{}: {}", pieces.size(), has_name ? " of " + shown(value["name"]) : "", error.message());
    }
  };
  return array;
}

// ---- the checksum

/// A manifest's text, told apart without being parsed.
struct Envelope {
  std::string outside;  ///< what stands around the inner object, with null in its place
  Checksum sum;         ///< of the inner object without white space
};

/// A bit that flips in the version's number must not make it another version's file.
void add_version(Checksum& sum, std::int64_t version) {
  if (version < kFirstWithItsVersion) return;
  const std::string text = fmt::format("version {}", version);
  sum.add(std::as_bytes(std::span(text)));
}

Envelope open_envelope(std::streambuf& text) {
  constexpr std::size_t kMaxOutside = 4096, kPart = 4096;
  Envelope envelope;
  std::string part;
  int depth = 0;
  bool in_string = false, escaped = false;
  for (int next; (next = text.sbumpc()) != std::char_traits<char>::eof();) {
    const char c = static_cast<char>(next);
    const bool opens = !in_string && (c == '{' || c == '['), closes = !in_string && (c == '}' || c == ']');
    const bool is_blank = !in_string && (c == ' ' || c == '\n' || c == '\r' || c == '\t');
    if (opens && ++depth == 2) envelope.outside += "null";
    if (depth < 2) envelope.outside += c;
    else if (!is_blank) part += c;
    if (closes) --depth;
    if (c == '"' && !escaped) in_string = !in_string;
    escaped = in_string && c == '\\' && !escaped;
    if (part.size() == kPart) {
      envelope.sum.add(std::as_bytes(std::span(part)));
      part.clear();
    }
    check(envelope.outside.size() <= kMaxOutside, "it is not a Sherd checkpoint");
  }
  envelope.sum.add(std::as_bytes(std::span(part)));
  return envelope;
}

void check_envelope(Envelope envelope) {
  const json outside = parse_bounded_json(envelope.outside);
  check(outside.is_object() && outside.contains("format") && outside["format"] == kFormat,
        "it is not a Sherd checkpoint");
  const std::int64_t version = read_integer(outside, "version");
  check(version >= kOldestVersion, "its version is {}; the first one is {}", version, kOldestVersion);
  add_version(envelope.sum, version);
  const std::string stored = read_string(outside, "checksum"), found = checksum_text(envelope.sum.value());
  check(stored == found, "its checksum is {}, its contents give {}; the file was changed", stored, found);
  if (version > kVersion)
    throw NewerVersion(fmt::format(
        "a newer Sherd wrote this save: its version is {}, this program reads versions {} to {}. Read it with that "
        "Sherd or a later one; an older save can be named by its own folder",
        version, kOldestVersion, kVersion));
}

}  // namespace

std::string manifest_to_json(const Manifest& manifest) {
  constexpr std::string_view kNoChecksum = "0000000000000000";
  try {
    std::string text = fmt::format("{{\"checksum\":\"{}\",\"format\":\"{}\",\"version\":{},\"manifest\":{{\n",
                                   kNoChecksum, kFormat, kVersion);
    text += " \"blocks\":{";
    std::string_view before;
    for (const auto& [file, blocks] : manifest.blocks) {
      text += fmt::format("{}\n  {}", before, blocks_json(file, blocks));
      before = ",";
    }
    text += fmt::format("\n }},\n \"config\":{},\n \"pieces\":[\n  ", json_text(manifest.config));
    append_pieces(manifest.pieces, ",\n  ", text);
    text += "\n ],\n";
    if (!manifest.plan.empty()) text += fmt::format(" \"plan\":{},\n", json_text(manifest.plan));
    text += fmt::format(" \"run\":{},\n \"state\":{{", json_text(manifest.run));
    before = "";
    for (const auto& [key, value] : manifest.state) {
      text += fmt::format("{}\n  {}:{}", before, json_text(key), to_json(value));
      before = ",";
    }
    text += fmt::format("\n }},\n \"step\":{},\n \"vocabulary\":{},\n \"world_size\":{}\n}}}}\n", manifest.step,
                        json_text(manifest.vocabulary), manifest.world_size);
    TextBuffer buffer(text);
    Checksum sum = open_envelope(buffer).sum;
    add_version(sum, kVersion);
    text.replace(text.find(kNoChecksum), kNoChecksum.size(), checksum_text(sum.value()));
    return text;
  } catch (const json::exception& error) { fail("a text in it is not UTF-8: {}", error.what()); }
}

Manifest manifest_from_json(const InputFile& file) {
  FileText text(file, 0, file.bytes()), again(file, 0, file.bytes());
  check_envelope(open_envelope(text));

  Manifest manifest;
  json fields = json::object();
  JsonMembers state{.name = "state"}, inner{.name = "manifest"};
  state.each = [&](const std::string& key, const json& value) {
    check(manifest.state.size() < kMaxStates, "its state has more than {} values", kMaxStates);
    check(manifest.state.emplace(key, read_state(key, value)).second, "the name \"{}\" stands twice", key);
  };
  inner.each = [&](const std::string& key, json& value) {
    if (std::find(kFields.begin(), kFields.end(), key) == kFields.end()) return;
    check(fields.emplace(key, std::move(value)).second, "the name \"{}\" stands twice", key);
  };
  inner.large = {blocks_into(manifest.blocks), pieces_into(manifest.pieces), state};
  read_json(again, {.large = {inner}});

  manifest.step = read_integer(fields, "step");
  const std::int64_t ranks = read_integer(fields, "world_size");
  check(ranks >= 1 && ranks <= INT32_MAX, "\"world_size\" is {}", ranks);
  manifest.world_size = static_cast<int>(ranks);
  // Until version 2 a manifest lay beside the folder with its files, and named it.
  if (fields.contains("save")) manifest.files = read_string(fields, "save");
  else manifest.run = read_string(fields, "run");
  manifest.config = read_string(fields, "config");
  if (fields.contains("plan")) manifest.plan = read_string(fields, "plan");
  manifest.vocabulary = read_string(fields, "vocabulary");
  return manifest;
}

std::uint64_t manifest_checksum(std::string_view inner, std::int64_t version) {
  Checksum sum;
  sum.add(std::as_bytes(std::span(inner)));
  add_version(sum, version);
  return sum.value();
}

std::string pieces_to_json(std::span<const PieceEntry> pieces) {
  std::string text = "[";
  append_pieces(pieces, ",", text);
  text += "]";
  return text;
}

std::deque<PieceEntry> pieces_from_json(std::string_view text) {
  std::deque<PieceEntry> pieces;
  read_json(text, pieces_into(pieces));
  return pieces;
}

std::string rank_file_to_json(const RankFile& file) {
  return fmt::format(R"({{"blocks":{{{}}},"pieces":{}}})", blocks_json(file.name, file.blocks),
                     pieces_to_json(file.pieces));
}

void rank_file_into(Manifest& manifest, std::string_view text) {
  read_json(text, {.large = {blocks_into(manifest.blocks), pieces_into(manifest.pieces)}});
}

}  // namespace sherd::ckpt
