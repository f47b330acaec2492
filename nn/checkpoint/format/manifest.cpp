#include "nn/checkpoint/format/manifest.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <tuple>
#include <vector>

#include "nn/checkpoint/format/atomic_file.h"
#include "nn/checkpoint/format/cover.h"
#include "nn/checkpoint/format/input_file.h"
#include "nn/checkpoint/format/manifest_json.h"
#include "nn/checkpoint/format/safetensors.h"
#include "nn/checkpoint/format/saves.h"
#include "runtime/tensor/error.h"

namespace sherd::ckpt {

namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kMaxManifestBytes = std::int64_t{1} << 30;

/// A plain file or folder name: nothing that leads out of the checkpoint.
bool is_plain_name(const std::string& name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == std::string::npos &&
         name.find('\0') == std::string::npos;
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

/// A piece lies in a file whose blocks have sums, or, of an earlier version, has a checksum of its own.
void check_place(const Manifest& manifest, const PieceEntry& piece) {
  if (piece.checksum) return;
  const auto found = manifest.blocks.find(piece.file);
  if (found == manifest.blocks.end())
    fail("{} \"{}\": there are no checksums of its file \"{}\"", piece.kind, piece.name, piece.file);
  const std::int64_t file_bytes = found->second.bytes;
  if (piece.at < 0 || piece.bytes < 0 || piece.at > file_bytes || piece.bytes > file_bytes - piece.at)
    fail("{} \"{}\": {} bytes from byte {} on are not in \"{}\", which has {}", piece.kind, piece.name, piece.bytes,
         piece.at, piece.file, file_bytes);
}

void check_pieces(const Manifest& manifest) {
  check(manifest.files.empty() || is_plain_name(manifest.files), "\"{}\" is no folder name", manifest.files);
  for (const auto& [file, sums] : manifest.blocks) check(is_plain_name(file), "\"{}\" is no file name", file);
  std::vector<const PieceEntry*> order;
  order.reserve(manifest.pieces.size());
  for (const PieceEntry& piece : manifest.pieces) order.push_back(&piece);
  const auto tensor = [](const PieceEntry* piece) { return std::tie(piece->kind, piece->name); };
  std::stable_sort(order.begin(), order.end(),
                   [&](const PieceEntry* a, const PieceEntry* b) { return tensor(a) < tensor(b); });
  for (auto begin = order.begin(); begin != order.end();) {
    const auto end = std::find_if(begin, order.end(), [&](const PieceEntry* p) { return tensor(p) != tensor(*begin); });
    check_tensor({begin, end});
    for (auto piece = begin; piece != end; ++piece) check_place(manifest, **piece);
    begin = end;
  }
}

}  // namespace

void add(Manifest& manifest, const RankFile& file) {
  manifest.blocks.emplace(file.name, file.blocks);
  manifest.pieces.insert(manifest.pieces.end(), file.pieces.begin(), file.pieces.end());
}

void commit(const std::string& dir, const std::string& name, const Manifest& manifest) {
  const fs::path folder = fs::path(dir) / name;
  check_pieces(manifest);
  std::string text;
  try {
    text = manifest_to_json(manifest);
  } catch (const Error& error) {
    fail("the manifest of \"{}\" cannot be written: {}", folder.string(), error.message());
  }
  sync_folder(folder.string());
  sync_folder(dir);  // which may have gained the folder
  AtomicFile file((folder / "manifest.json").string(), static_cast<std::int64_t>(text.size()));
  file.write(std::as_bytes(std::span(text)));
  try {
    file.commit();
  } catch (...) {  // it may have its name already, without being durable
    std::error_code ignored;
    fs::remove(folder / "manifest.json", ignored);
    throw;
  }
}

Manifest read_manifest(const std::string& where) {
  const fs::path path = fs::path(newest_save(where)) / "manifest.json";
  std::optional<InputFile> file;
  try {
    file.emplace(path.string());
  } catch (const Error& error) { fail("no checkpoint: {}", error.message()); }
  check(file->bytes() <= kMaxManifestBytes, "\"{}\" has {} bytes; a manifest has at most {}", file->path(),
        file->bytes(), kMaxManifestBytes);
  try {
    Manifest manifest = manifest_from_json(*file);
    check_pieces(manifest);
    return manifest;
  } catch (const NewerVersion& error) {
    throw NewerVersion(fmt::format("\"{}\": {}", file->path(), error.message()));
  } catch (const Error& error) { fail("\"{}\" is damaged: {}", file->path(), error.message()); }
}

}  // namespace sherd::ckpt
