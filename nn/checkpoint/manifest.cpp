#include "nn/checkpoint/manifest.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <optional>
#include <regex>
#include <sstream>
#include <tuple>

#include <nlohmann/json.hpp>

#include "nn/checkpoint/atomic_file.h"
#include "nn/checkpoint/bounded_json.h"
#include "nn/checkpoint/checksum.h"
#include "nn/checkpoint/cover.h"
#include "nn/checkpoint/safetensors.h"
#include "runtime/tensor/error.h"

// The file is {"format", "version", "checksum", "manifest": {...}}. The checksum is over the compact dump of the inner
// object, whose keys are sorted, so any flipped bit that changes a value is found, and the file stays pretty-printed.
namespace sherd {

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr std::string_view kFormat = "sherd checkpoint";
constexpr std::int64_t kOldestVersion = 1, kVersion = 2;
constexpr std::uintmax_t kMaxManifestBytes = std::uintmax_t{1} << 30;

fs::path manifest_path(const std::string& dir) { return fs::path(dir) / "manifest.json"; }

/// A plain file or folder name: nothing that leads out of the checkpoint.
bool is_plain_name(const std::string& name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == std::string::npos &&
         name.find('\0') == std::string::npos;
}

std::int64_t read_integer(const json& object, const char* key) {
  const json& value = object.at(key);
  check(value.is_number_integer(), "\"{}\" is {}, not an integer", key, value.dump());
  check(!value.is_number_unsigned() || value.get<std::uint64_t>() <= static_cast<std::uint64_t>(INT64_MAX),
        "\"{}\" is {}, too large", key, value.dump());
  return value.get<std::int64_t>();
}

/// JSON has no NaN or infinity: they are {"non_finite": "nan"}.
json state_to_json(const StateValue& value) {
  if (const auto* number = std::get_if<double>(&value)) {
    if (!std::isfinite(*number)) return {{"non_finite", fmt::format("{}", *number)}};
    return *number;
  }
  if (const auto* integer = std::get_if<std::int64_t>(&value)) return *integer;
  return std::get<std::string>(value);
}

StateValue state_from_json(const std::string& key, const json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_number_float()) return value.get<double>();
  if (value.is_number_integer()) return value.get<std::int64_t>();
  check(value.is_object() && value.contains("non_finite"), "state \"{}\" is {}", key, value.dump());
  const auto text = value.at("non_finite").get<std::string>();
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (text == "inf") return kInfinity;
  return text == "-inf" ? -kInfinity : std::numeric_limits<double>::quiet_NaN();
}

std::vector<std::int64_t> list_of(const Dims& dims) { return {dims.begin(), dims.end()}; }

Dims read_dims(const json& piece, const char* key) {
  Dims dims;
  for (const json& value : piece.at(key)) {
    check(value.is_number_unsigned() && value.get<std::uint64_t>() <= static_cast<std::uint64_t>(INT64_MAX),
          "tensor {}: its {} holds {}", piece.at("name").dump(), key, value.dump());
    dims.push_back(value.get<std::int64_t>());
  }
  return dims;
}

json piece_to_json(const PieceEntry& piece) {
  return {{"name", piece.name},
          {"kind", piece.kind},
          {"dtype", name(piece.dtype)},
          {"shape", list_of(piece.shape)},
          {"offset", list_of(piece.box.offset)},
          {"extent", list_of(piece.box.shape)},
          {"file", piece.file},
          {"checksum", checksum_text(piece.checksum)},
          {"bytes", piece.bytes}};
}

PieceEntry piece_from_json(const json& object) {
  PieceEntry piece;
  piece.name = object.at("name").get<std::string>();
  piece.kind = object.at("kind").get<std::string>();
  piece.dtype = dtype_from_name(object.at("dtype").get<std::string>());
  piece.shape = read_dims(object, "shape");
  // Version 1 knew pieces of whole rows; a 0-d tensor had one.
  if (object.contains("rows"))
    piece.box = piece.shape.empty()
                    ? whole_box(piece.shape)
                    : rows_box(piece.shape, read_integer(object, "row_offset"), read_integer(object, "rows"));
  else piece.box = {read_dims(object, "offset"), read_dims(object, "extent")};
  piece.file = object.at("file").get<std::string>();
  piece.checksum = checksum_from_text(object.at("checksum").get<std::string>());
  piece.bytes = read_integer(object, "bytes");
  return piece;
}

json to_json(const Manifest& manifest) {
  json state = json::object(), pieces = json::array();
  for (const auto& [key, value] : manifest.state) state[key] = state_to_json(value);
  for (const PieceEntry& piece : manifest.pieces) pieces.push_back(piece_to_json(piece));
  return {{"step", manifest.step},      {"world_size", manifest.world_size}, {"save", manifest.save},
          {"config", manifest.config},  {"vocabulary", manifest.vocabulary}, {"state", std::move(state)},
          {"pieces", std::move(pieces)}};
}

Manifest from_json(const json& object) {
  Manifest manifest;
  manifest.step = read_integer(object, "step");
  const std::int64_t ranks = read_integer(object, "world_size");
  check(ranks >= 1 && ranks <= INT32_MAX, "\"world_size\" is {}", ranks);
  manifest.world_size = static_cast<int>(ranks);
  manifest.save = object.at("save").get<std::string>();
  manifest.config = object.at("config").get<std::string>();
  manifest.vocabulary = object.at("vocabulary").get<std::string>();
  for (const auto& [key, value] : object.at("state").items()) manifest.state[key] = state_from_json(key, value);
  for (const json& piece : object.at("pieces")) manifest.pieces.push_back(piece_from_json(piece));
  return manifest;
}

/// Pieces of one tensor agree on what they are pieces of and hold each element once.
void check_tensor(std::span<const PieceEntry* const> pieces) {
  const PieceEntry& first = *pieces[0];
  const std::string where = fmt::format("{} \"{}\"", first.kind, first.name);
  byte_count(first.dtype, first.shape);  // is one
  std::vector<const Box*> boxes;
  boxes.reserve(pieces.size());
  for (const PieceEntry* piece : pieces) {
    check(piece->dtype == first.dtype && piece->shape == first.shape, "{}: one piece is of {}{}, another of {}{}",
          where, name(first.dtype), first.shape, name(piece->dtype), piece->shape);
    check(is_plain_name(piece->file), "{}: \"{}\" is no file name", where, piece->file);
    if (!is_inside(piece->box, piece->shape))
      fail("{}: a piece holds the elements {} of a tensor of shape {}", where, to_string(piece->box), piece->shape);
    const std::int64_t bytes = byte_count(piece->dtype, piece->box.shape);
    if (piece->bytes != bytes)
      fail("{}: a piece of the elements {} has {} bytes, not {}", where, to_string(piece->box), piece->bytes, bytes);
    boxes.push_back(&piece->box);
  }
  const std::optional<Miscount> wrong = first_miscount(boxes, first.shape);
  if (!wrong) return;
  check(wrong->boxes > 0, "{}: none of its {} pieces holds the element {}", where, pieces.size(), wrong->element);
  const auto holder = [&](const PieceEntry* piece) { return holds(piece->box, wrong->element); };
  const auto one = std::find_if(pieces.begin(), pieces.end(), holder);
  const auto other = std::find_if(one + 1, pieces.end(), holder);
  fail("{}: {} pieces hold the element {}, such as {} of \"{}\" and {} of \"{}\"", where, wrong->boxes, wrong->element,
       to_string((*one)->box), (*one)->file, to_string((*other)->box), (*other)->file);
}

void check_pieces(const Manifest& manifest) {
  check(is_plain_name(manifest.save), "\"{}\" is no folder name", manifest.save);
  std::vector<const PieceEntry*> order;
  order.reserve(manifest.pieces.size());
  for (const PieceEntry& piece : manifest.pieces) order.push_back(&piece);
  const auto tensor = [](const PieceEntry* piece) { return std::tie(piece->kind, piece->name); };
  std::stable_sort(order.begin(), order.end(),
                   [&](const PieceEntry* a, const PieceEntry* b) { return tensor(a) < tensor(b); });
  for (auto begin = order.begin(); begin != order.end();) {
    const auto end = std::find_if(begin, order.end(), [&](const PieceEntry* p) { return tensor(p) != tensor(*begin); });
    check_tensor({begin, end});
    begin = end;
  }
}

/// Removes what saves other than `keep` left in `dir`. Only names that saves use are touched, so a file that someone
/// else put there stays, and so does its folder. Failing to clean up is no reason to fail a save that is committed.
void remove_other_saves(const std::string& dir, const std::string& keep) {
  static const std::regex folder_name(R"(step-\d{6,}(\.\d+)?)"), file_name(R"(rank-\d{5,}\.safetensors(\.partial)?)");
  std::error_code ignored;
  for (const auto& folder : fs::directory_iterator(dir, ignored)) {
    const std::string name = folder.path().filename().string();
    if (name == keep || !std::regex_match(name, folder_name) || folder.is_symlink(ignored)) continue;
    std::vector<fs::path> files;
    for (const auto& file : fs::directory_iterator(folder.path(), ignored))
      if (std::regex_match(file.path().filename().string(), file_name)) files.push_back(file.path());
    for (const auto& file : files) fs::remove(file, ignored);
    fs::remove(folder.path(), ignored);  // only if empty
  }
}

std::string read_text(const fs::path& path) {
  std::error_code error;
  const auto size = fs::file_size(path, error);
  check(!error, "no checkpoint: cannot read \"{}\": {}", path.string(), error.message());
  check(size <= kMaxManifestBytes, "\"{}\" has {} bytes; a manifest has at most {}", path.string(), size,
        kMaxManifestBytes);
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  check(file.good() && !text.fail(), "cannot read \"{}\": {}", path.string(), std::strerror(errno));
  return std::move(text).str();
}

}  // namespace

std::string pieces_to_json(std::span<const PieceEntry> pieces) {
  json array = json::array();
  for (const PieceEntry& piece : pieces) array.push_back(piece_to_json(piece));
  return array.dump();
}

std::vector<PieceEntry> pieces_from_json(std::string_view text) {
  try {
    std::vector<PieceEntry> pieces;
    const json list = parse_bounded_json(text);
    for (const json& piece : list) pieces.push_back(piece_from_json(piece));
    return pieces;
  } catch (const json::exception& error) { fail("a list of checkpoint pieces is damaged: {}", error.what()); }
}

std::string save_name(const std::string& dir, std::int64_t step) {
  const std::string name = fmt::format("step-{:06}", step);
  if (!fs::exists(manifest_path(dir))) return name;
  // The same step is saved again only after a resume; two names in turn are enough to leave the good one alone.
  return read_manifest(dir).save == name ? name + ".1" : name;
}

void commit(const std::string& dir, const Manifest& manifest) {
  check_pieces(manifest);
  std::string text;
  try {
    const json inner = to_json(manifest);
    const json file = {{"format", kFormat},
                       {"version", kVersion},
                       {"checksum", checksum_text(checksum(inner.dump()))},
                       {"manifest", inner}};
    text = file.dump(1);
  } catch (const json::exception& error) { fail("the manifest of \"{}\" cannot be written: {}", dir, error.what()); }
  sync_folder((fs::path(dir) / manifest.save).string());
  AtomicFile file(manifest_path(dir).string(), static_cast<std::int64_t>(text.size()));
  file.write(std::as_bytes(std::span(text)));
  file.commit();
  remove_other_saves(dir, manifest.save);
}

Manifest read_manifest(const std::string& dir) {
  const fs::path path = manifest_path(dir);
  const std::string text = read_text(path);
  try {
    const json file = parse_bounded_json(text);
    check(file.is_object() && file.value("format", "") == kFormat, "it is not a Sherd checkpoint");
    const std::int64_t version = read_integer(file, "version");
    check(version >= kOldestVersion && version <= kVersion, "its version is {}; this program reads versions {} to {}",
          version, kOldestVersion, kVersion);
    const json& inner = file.at("manifest");
    const std::string stored = file.at("checksum").get<std::string>(), found = checksum_text(checksum(inner.dump()));
    check(stored == found, "its checksum is {}, its contents give {}; the file was changed", stored, found);
    Manifest manifest = from_json(inner);
    check_pieces(manifest);
    return manifest;
  } catch (const json::exception& error) {
    fail("\"{}\" is damaged: {}", path.string(), error.what());
  } catch (const Error& error) { fail("\"{}\" is damaged: {}", path.string(), error.message()); }
}

}  // namespace sherd
