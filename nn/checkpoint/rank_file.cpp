#include "nn/checkpoint/rank_file.h"

#include <algorithm>
#include <filesystem>
#include <tuple>

#include "nn/checkpoint/checksum.h"
#include "nn/checkpoint/folders.h"
#include "nn/checkpoint/saves.h"
#include "runtime/tensor/error.h"

namespace sherd {

namespace {

namespace fs = std::filesystem;

std::string rank_file_name(int rank) { return fmt::format("rank-{:05}.safetensors", rank); }

/// "param "a", optim.m "b" and 4 more".
std::string list(const std::vector<std::pair<std::string, std::string>>& keys) {
  constexpr std::size_t kShown = 8;
  std::string text;
  for (std::size_t i = 0; i < std::min(keys.size(), kShown); ++i)
    text += fmt::format("{}{} \"{}\"", i ? ", " : "", keys[i].first, keys[i].second);
  if (keys.size() > kShown) text += fmt::format(" and {} more", keys.size() - kShown);
  return text;
}

}  // namespace

std::string stored_name(const std::string& kind, const std::string& name, int part) {
  const std::string stored = kind == "param" ? name : kind + "/" + name;
  return part == 0 ? stored : fmt::format("{}#{}", stored, part);
}

std::vector<PieceEntry> write_rank_file(const std::string& dir, const std::string& save, int rank,
                                        std::span<const Piece> pieces) {
  const fs::path folder = fs::path(dir) / save;
  make_folders(folder.string());

  // Wide dtypes first, then by name, as write_safetensors() has them.
  std::vector<TensorInfo> infos;
  std::vector<std::size_t> order;
  for (const Piece& piece : pieces) {
    check(is_inside(piece.box, piece.shape), "{} \"{}\": the elements {} do not exist in shape {}", piece.kind,
          piece.name, to_string(piece.box), to_string(piece.shape));
    order.push_back(infos.size());
    infos.push_back({stored_name(piece.kind, piece.name, piece.part), piece.dtype, piece.box.shape});
  }
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return std::tuple(-byte_size(infos[a].dtype), std::string_view(infos[a].name)) <
           std::tuple(-byte_size(infos[b].dtype), std::string_view(infos[b].name));
  });
  std::vector<TensorInfo> ordered;
  for (const std::size_t i : order) ordered.push_back(infos[i]);

  const std::string path = (folder / rank_file_name(rank)).string();
  SafetensorsWriter writer(path, ordered);
  std::vector<PieceEntry> entries(pieces.size());
  for (const std::size_t i : order) {
    const Piece& piece = pieces[i];
    const std::span<const std::byte> bytes = piece.bytes.get();
    const std::int64_t needed = byte_count(piece.dtype, infos[i].shape);
    check(static_cast<std::int64_t>(bytes.size()) == needed, "\"{}\": tensor \"{}\" has {} bytes, {}{} needs {}", path,
          infos[i].name, bytes.size(), sherd::name(piece.dtype), to_string(infos[i].shape), needed);
    writer.write(bytes);
    entries[i] = {piece.name,           piece.kind,      piece.dtype, piece.shape, piece.box,
                  rank_file_name(rank), checksum(bytes), needed,      piece.part};
  }
  writer.commit();
  return entries;
}

CheckpointReader::CheckpointReader(const std::string& path) : dir_(newest_save(path)), manifest_(read_manifest(dir_)) {
  for (const PieceEntry& piece : manifest_.pieces) {
    tensors_[{piece.kind, piece.name}].push_back(&piece);
    if (files_.contains(piece.file)) continue;
    const fs::path file = fs::path(dir_) / manifest_.files / piece.file;
    files_.emplace(piece.file, SafetensorsFile::open(file.string()));
  }
  // The files must hold exactly the manifest's tensors, in dtype and shape.
  std::map<std::string, std::size_t> listed;
  for (const PieceEntry& piece : manifest_.pieces) {
    const SafetensorsFile& file = files_.at(piece.file);
    const TensorEntry& tensor = file.at(stored_name(piece.kind, piece.name, piece.part));
    const Shape& shape = piece.box.shape;
    check(tensor.dtype == piece.dtype && tensor.shape == shape, "\"{}\": tensor \"{}\" is {}{}, the manifest says {}{}",
          file.path(), tensor.name, sherd::name(tensor.dtype), to_string(tensor.shape), sherd::name(piece.dtype),
          to_string(shape));
    ++listed[piece.file];
  }
  for (const auto& [name, file] : files_)
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
  std::vector<std::pair<std::string, std::string>> missing, extra;
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

void CheckpointReader::compare_checksum(const PieceEntry& piece) const {
  constexpr std::int64_t kPartBytes = 1 << 20;
  const SafetensorsFile& file = files_.at(piece.file);
  const TensorEntry& tensor = file.at(stored_name(piece.kind, piece.name, piece.part));
  std::vector<std::byte> part(static_cast<std::size_t>(std::min(kPartBytes, tensor.bytes)));
  Checksum sum;
  for (std::int64_t at = 0; at < tensor.bytes; at += kPartBytes) {
    const std::span bytes(part.data(), static_cast<std::size_t>(std::min(kPartBytes, tensor.bytes - at)));
    file.read(tensor, at, bytes);
    sum.add(bytes);
  }
  check(sum.value() == piece.checksum, "\"{}\": {} \"{}\" has checksum {}, the manifest says {}; the file was changed",
        file.path(), piece.kind, piece.name, checksum_text(sum.value()), checksum_text(piece.checksum));
}

void CheckpointReader::verify() const {
  for (const PieceEntry& piece : manifest_.pieces) compare_checksum(piece);
  verified_ = true;
}

bool CheckpointReader::contains(const std::string& kind, const std::string& name) const {
  return tensors_.contains({kind, name});
}

const PieceEntry& CheckpointReader::describe(const std::string& kind, const std::string& name) const {
  const auto found = tensors_.find({kind, name});
  check(found != tensors_.end(), "the checkpoint \"{}\" holds no {} \"{}\"", dir_, kind, name);
  return *found->second.front();
}

namespace {

// Reads runs of a tensor's bytes at ascending positions: long ones straight to their destination, short ones through a
// buffer.
class RunReader {
 public:
  RunReader(const SafetensorsFile& file, const TensorEntry& tensor) : file_(file), tensor_(tensor) {}
  void read(std::int64_t at, std::span<std::byte> out) {
    constexpr std::int64_t kBufferBytes = 1 << 20, kLong = 1 << 16;
    const auto bytes = static_cast<std::int64_t>(out.size());
    if (bytes >= kLong) return file_.read(tensor_, at, out);
    if (at < start_ || at + bytes > start_ + static_cast<std::int64_t>(buffer_.size())) {
      start_ = at;
      buffer_.resize(static_cast<std::size_t>(std::min(kBufferBytes, tensor_.bytes - at)));
      file_.read(tensor_, at, buffer_);
    }
    std::copy_n(buffer_.begin() + (at - start_), bytes, out.begin());
  }

 private:
  const SafetensorsFile& file_;
  const TensorEntry& tensor_;
  std::vector<std::byte> buffer_;
  std::int64_t start_ = 0;
};

}  // namespace

void CheckpointReader::check_box(const std::string& kind, const std::string& name, DType dtype, const Shape& shape,
                                 const Box& box) const {
  const PieceEntry& saved = describe(kind, name);
  check(saved.dtype == dtype && saved.shape == shape, "the checkpoint \"{}\" holds {} \"{}\" as {}{}, not as {}{}",
        dir_, kind, name, sherd::name(saved.dtype), to_string(saved.shape), sherd::name(dtype), to_string(shape));
  check(is_inside(box, shape), "{} \"{}\": the elements {} of shape {} are asked for", kind, name, to_string(box),
        to_string(shape));
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
    if (!verified_) compare_checksum(*piece);
    const SafetensorsFile& file = files_.at(piece->file);
    RunReader reader(file, file.at(stored_name(kind, name, piece->part)));
    for_each_run(*part, piece->box, box, [&](std::int64_t from, std::int64_t to, std::int64_t count) {
      reader.read(from * element,
                  out.subspan(static_cast<std::size_t>(to * element), static_cast<std::size_t>(count * element)));
    });
  }
}

}  // namespace sherd
