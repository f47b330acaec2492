#include "nn/checkpoint/format/rank_file.h"

#include <algorithm>
#include <filesystem>
#include <tuple>

#include "nn/checkpoint/format/folders.h"
#include "runtime/tensor/error.h"

namespace sherd::ckpt {

namespace {

namespace fs = std::filesystem;

/// The tensors of the pieces, and the order in which they lie in the file.
struct FileLayout {
  std::vector<TensorInfo> infos;  // by piece
  std::vector<std::size_t> order;
};

FileLayout layout_of(std::span<const Piece> pieces) {
  FileLayout layout;
  for (const Piece& piece : pieces) {
    check(is_inside(piece.box, piece.shape), "{} \"{}\": the elements {} do not exist in shape {}", piece.kind,
          piece.name, to_string(piece.box), to_string(piece.shape));
    layout.order.push_back(layout.infos.size());
    layout.infos.push_back({stored_name(piece.kind, piece.name, piece.part), piece.dtype, piece.box.shape});
  }
  const std::vector<TensorInfo>& infos = layout.infos;
  std::ranges::sort(layout.order, [&](std::size_t a, std::size_t b) {
    return lies_before(infos[a].dtype, infos[a].name, infos[b].dtype, infos[b].name);
  });
  return layout;
}

}  // namespace

std::string stored_name(const std::string& kind, const std::string& name, int part) {
  const std::string stored = kind == "param" ? name : kind + "/" + name;
  return part == 0 ? stored : fmt::format("{}#{}", stored, part);
}

bool lies_before(DType dtype, std::string_view stored, DType other_dtype, std::string_view other_stored) {
  return std::tuple(-byte_size(dtype), stored) < std::tuple(-byte_size(other_dtype), other_stored);
}

std::string rank_file_name(int rank) { return fmt::format("rank-{:05}.safetensors", rank); }

RankFile write_rank_file(const std::string& dir, const std::string& save, int rank, std::span<const Piece> pieces) {
  const fs::path folder = fs::path(dir) / save;
  make_folders(folder.string());
  const auto [infos, order] = layout_of(pieces);
  std::vector<TensorInfo> ordered;
  for (const std::size_t i : order) ordered.push_back(infos[i]);

  RankFile file{.name = rank_file_name(rank), .blocks = {}, .pieces = {}};
  const std::string path = (folder / file.name).string();
  BlockHasher hasher;
  SafetensorsWriter writer(path, ordered, {}, &hasher);
  file.pieces.resize(pieces.size());
  for (const std::size_t i : order) {
    const Piece& piece = pieces[i];
    const std::int64_t needed = byte_count(piece.dtype, infos[i].shape);
    file.pieces[i] = {piece.name, piece.kind,        piece.dtype, piece.shape, piece.box,
                      file.name,  writer.position(), needed,      piece.part};
    std::int64_t given = 0;
    const auto check_size = [&](bool is_right) {
      check(is_right, "\"{}\": tensor \"{}\" has {} bytes, {}{} needs {}", path, infos[i].name, given,
            sherd::name(piece.dtype), to_string(infos[i].shape), needed);
    };
    piece.bytes.give([&](std::span<const std::byte> part) {
      given += static_cast<std::int64_t>(part.size());
      check_size(given <= needed);
      writer.write(part);
    });
    check_size(given == needed);
  }
  writer.commit();
  file.blocks = hasher.sums();
  return file;
}

}  // namespace sherd::ckpt
