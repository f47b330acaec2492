// Since version 4 the manifest says where each piece lies and what each block of each file sums to, so a reader opens
// the files it wants something of, and reads whole blocks. Of earlier versions it reads the headers of all files for
// the positions, and compares pieces by their own checksums; there a block is only what is read at once.
#include "nn/checkpoint/load/checkpoint_reader.h"

#include <algorithm>
#include <filesystem>

#include "nn/checkpoint/format/safetensors.h"
#include "nn/checkpoint/format/saves.h"
#include "runtime/tensor/error.h"
#include "runtime/tensor/indices.h"

namespace sherd::ckpt {

namespace {

namespace fs = std::filesystem;

using TensorKeys = std::vector<std::pair<std::string, std::string>>;

/// "param "a", optim.m "b" and 4 more".
std::string list(const TensorKeys& keys) {
  constexpr std::size_t kShown = 8;
  std::string text;
  for (const std::size_t i : up_to(std::min(keys.size(), kShown)))
    text += fmt::format("{}{} \"{}\"", i ? ", " : "", keys[i].first, keys[i].second);
  if (keys.size() > kShown) text += fmt::format(" and {} more", keys.size() - kShown);
  return text;
}

void check_is_whole(const std::string& path, const BlockSums& sums) {
  const InputFile file(path);
  check(file.bytes() == sums.bytes, "\"{}\" has {} bytes, the manifest says {}; the file is truncated or was replaced",
        path, file.bytes(), sums.bytes);
}

/// From the first item of this share up to that of the next one.
std::pair<std::int64_t, std::int64_t> items_of(CheckpointReader::Share share, std::int64_t items) {
  return {items / share.of * share.index + items % share.of * share.index / share.of,
          items / share.of * (share.index + 1) + items % share.of * (share.index + 1) / share.of};
}

}  // namespace

CheckpointReader::CheckpointReader(const std::string& path) : dir_(newest_save(path)), manifest_(read_manifest(dir_)) {
  const fs::path folder = fs::path(dir_) / manifest_.files;
  for (const auto& [name, sums] : manifest_.blocks) {
    const std::string file = (folder / name).string();
    check_is_whole(file, sums);
    files_.emplace(name, BlockFile{.path = file, .sums = &sums});
  }
  open_earlier_version();
  for (const PieceEntry& piece : manifest_.pieces) tensors_[{piece.kind, piece.name}].push_back(&piece);
}

void CheckpointReader::open_earlier_version() {
  const fs::path folder = fs::path(dir_) / manifest_.files;
  std::map<std::string, SafetensorsFile> headers;
  std::map<std::string, std::size_t> listed;
  // The files must hold exactly the manifest's tensors, in dtype and shape.
  for (PieceEntry& piece : manifest_.pieces) {
    if (!piece.checksum) continue;
    if (!headers.contains(piece.file)) {
      const std::string path = (folder / piece.file).string();
      headers.emplace(piece.file, SafetensorsFile::open(path));
      files_.emplace(piece.file, BlockFile{.path = path});
    }
    const SafetensorsFile& file = headers.at(piece.file);
    const TensorEntry& tensor = file.at(stored_name(piece.kind, piece.name, piece.part));
    const Shape& shape = piece.box.shape;
    check(tensor.dtype == piece.dtype && tensor.shape == shape, "\"{}\": tensor \"{}\" is {}{}, the manifest says {}{}",
          file.path(), tensor.name, sherd::name(tensor.dtype), to_string(tensor.shape), sherd::name(piece.dtype),
          to_string(shape));
    piece.at = tensor.offset;
    ++listed[piece.file];
  }
  for (const auto& [name, file] : headers)
    check(file.tensors().size() == listed.at(name), "\"{}\" holds {} tensors, the manifest lists {} of it", file.path(),
          file.tensors().size(), listed.at(name));
}

void CheckpointReader::require_world_size(int world_size) const {
  check(manifest_.world_size == world_size,
        "the checkpoint \"{}\" was saved by {} ranks and this run has {}: a resume is bitwise only at the same number; "
        "start {} ranks",
        dir_, manifest_.world_size, world_size, manifest_.world_size);
}

void CheckpointReader::require_exactly(const std::set<std::pair<std::string, std::string>>& wanted) const {
  TensorKeys missing, extra;
  for (const auto& key : wanted)
    if (!tensors_.contains(key)) missing.push_back(key);
  for (const auto& [key, pieces] : tensors_)
    if (!wanted.contains(key)) extra.push_back(key);
  if (missing.empty() && extra.empty()) return;
  std::string text = fmt::format("the checkpoint \"{}\" does not fit this model", dir_);
  if (!missing.empty()) text += fmt::format("; it lacks {}", list(missing));
  if (!extra.empty()) text += fmt::format("; the model has no {}", list(extra));
  throw Error(text);
}

bool CheckpointReader::contains(const std::string& kind, const std::string& name) const {
  return tensors_.contains({kind, name});
}

const PieceEntry& CheckpointReader::describe(const std::string& kind, const std::string& name) const {
  const auto found = tensors_.find({kind, name});
  check(found != tensors_.end(), "the checkpoint \"{}\" holds no {} \"{}\"", dir_, kind, name);
  return *found->second.front();
}

std::vector<const PieceEntry*> CheckpointReader::pieces_of(const std::string& kind, const std::string& name) const {
  const auto found = tensors_.find({kind, name});
  return found == tensors_.end() ? std::vector<const PieceEntry*>() : found->second;
}

void CheckpointReader::check_box(const std::string& kind, const std::string& name, DType dtype, const Shape& shape,
                                 const Box& box) const {
  const PieceEntry& saved = describe(kind, name);
  check(saved.dtype == dtype && saved.shape == shape, "the checkpoint \"{}\" holds {} \"{}\" as {}{}, not as {}{}",
        dir_, kind, name, sherd::name(saved.dtype), to_string(saved.shape), sherd::name(dtype), to_string(shape));
  check(is_inside(box, shape), "{} \"{}\": the elements {} of shape {} are asked for", kind, name, to_string(box),
        to_string(shape));
}

// ---- reading

std::string CheckpointReader::describe(const BlockFile& file, const std::string& name, const BadBlock& bad) const {
  const std::int64_t begin = bad.block * kBlockBytes, end = std::min(begin + kBlockBytes, file.sums->bytes);
  std::vector<const PieceEntry*> held;
  std::int64_t first = file.sums->bytes;  // byte of a tensor
  for (const PieceEntry& piece : manifest_.pieces) {
    if (piece.file != name || piece.bytes == 0) continue;
    first = std::min(first, piece.at);
    if (piece.at < end && piece.at + piece.bytes > begin) held.push_back(&piece);
  }
  std::ranges::sort(held, {}, &PieceEntry::at);
  TensorKeys keys;
  for (const PieceEntry* piece : held) keys.emplace_back(piece->kind, piece->name);
  const std::string_view header = begin < first ? (keys.empty() ? "the header" : "the header, ") : "";
  return fmt::format(
      "\"{}\": block {}, bytes {} to {}, with {}{}, has checksum {}, the manifest says {}; the file was changed",
      file.path, bad.block, begin, end, header, list(keys), checksum_text(bad.found), checksum_text(bad.expected));
}

void CheckpointReader::read(BlockFile& file, const PieceEntry& piece, std::int64_t begin,
                            std::span<std::byte> out) const {
  std::optional<BadBlock> bad;
  try {
    bad = blocks_.read(file, piece.at + begin, out);
  } catch (const Error& error) {
    throw DamagedSave(fmt::format("{}, within {} \"{}\"", error.message(), piece.kind, piece.name));
  }
  if (bad)
    throw DamagedSave(
        fmt::format("{}; {} \"{}\" is asked for", describe(file, piece.file, *bad), piece.kind, piece.name));
}

std::string CheckpointReader::compare_checksum(const PieceEntry& piece) const {
  BlockFile& file = files_.at(piece.file);
  std::vector<std::byte> part(static_cast<std::size_t>(std::min(kBlockBytes, piece.bytes)));
  Checksum sum;
  for (std::int64_t at = 0; at < piece.bytes; at += kBlockBytes) {
    const std::span bytes(part.data(), static_cast<std::size_t>(std::min(kBlockBytes, piece.bytes - at)));
    read(file, piece, at, bytes);
    sum.add(bytes);
  }
  if (sum.value() == piece.checksum) return {};
  return fmt::format("\"{}\": {} \"{}\" has checksum {}, the manifest says {}; the file was changed", file.path,
                     piece.kind, piece.name, checksum_text(sum.value()), checksum_text(*piece.checksum));
}

void CheckpointReader::compare_once(const PieceEntry& piece) const {
  if (!piece.checksum || compared_.contains(&piece)) return;
  if (const std::string wrong = compare_checksum(piece); !wrong.empty()) throw DamagedSave(wrong);
  compared_.insert(&piece);
}

std::vector<std::string> CheckpointReader::find_damage(Share share) const {
  std::vector<std::string> damage;
  std::int64_t blocks = 0, at = 0;
  for (const auto& [name, sums] : manifest_.blocks) blocks += num_blocks_of(sums.bytes);
  const auto [begin, end] = items_of(share, blocks);
  std::vector<std::byte> bytes(static_cast<std::size_t>(kBlockBytes));
  for (const auto& [name, sums] : manifest_.blocks)
    for (std::int64_t block = 0; block < num_blocks_of(sums.bytes); ++block, ++at) {
      if (at < begin || at >= end) continue;
      BlockFile& file = files_.at(name);
      const std::int64_t from = block * kBlockBytes;
      const auto size = static_cast<std::size_t>(std::min(kBlockBytes, sums.bytes - from));
      try {
        if (const auto bad = blocks_.read(file, from, std::span(bytes).first(size)))
          damage.push_back(describe(file, name, *bad));
      } catch (const Error& error) { damage.push_back(fmt::format("block {} of {}", block, error.message())); }
    }
  std::vector<const PieceEntry*> earlier;
  for (const PieceEntry& piece : manifest_.pieces)
    if (piece.checksum) earlier.push_back(&piece);
  const auto [first, last] = items_of(share, static_cast<std::int64_t>(earlier.size()));
  for (const std::int64_t i : Numbers<std::int64_t>(first, last)) try {
      if (std::string wrong = compare_checksum(*earlier[static_cast<std::size_t>(i)]); !wrong.empty())
        damage.push_back(std::move(wrong));
    } catch (const Error& error) { damage.push_back(error.message()); }
  return damage;
}

void CheckpointReader::verify(Share share) const {
  if (const std::vector<std::string> damage = find_damage(share); !damage.empty()) throw DamagedSave(damage.front());
}

void CheckpointReader::read_box(const std::string& kind, const std::string& name, DType dtype, const Shape& shape,
                                const Box& box, std::span<std::byte> out) const {
  check_box(kind, name, dtype, shape, box);
  check(static_cast<std::int64_t>(out.size()) == byte_count(dtype, box.shape),
        "{} \"{}\": the elements {} have {} bytes, the buffer has {}", kind, name, to_string(box),
        byte_count(dtype, box.shape), out.size());
  const std::int64_t element = byte_size(dtype);
  for (const PieceEntry* piece : tensors_.at({kind, name})) {
    const std::optional<Box> part = intersection(box, piece->box);
    if (!part || numel(*part) == 0) continue;
    compare_once(*piece);
    BlockFile& file = files_.at(piece->file);
    for_each_run(*part, piece->box, box, [&](std::int64_t from, std::int64_t to, std::int64_t count) {
      read(file, *piece, from * element,
           out.subspan(static_cast<std::size_t>(to * element), static_cast<std::size_t>(count * element)));
    });
  }
}

}  // namespace sherd::ckpt
