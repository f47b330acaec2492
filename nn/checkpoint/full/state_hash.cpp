#include "nn/checkpoint/full/state_hash.h"

#include <map>
#include <span>

#include "nn/checkpoint/full/full_state.h"
#include "runtime/comm/store/hmac.h"
#include "runtime/exec/purpose.h"
#include "runtime/op/rows/ops.h"

namespace sherd::ckpt {

namespace {

std::string hash_of(std::span<const std::byte> bytes) {
  const Digest digest = sha256({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  return fmt::format("{:02x}", fmt::join(digest, ""));
}

using Lines = std::map<std::string, std::string>;  // by name

void add_line(Lines& lines, const std::string& name, DType dtype, const Shape& shape,
              std::span<const std::byte> bytes) {
  lines[name] = fmt::format("{} {}{} {}\n", name, sherd::name(dtype), shape, hash_of(bytes));
}

std::string hash_of(const Lines& lines) {
  std::string all;
  for (const auto& [name, line] : lines) all += line;
  return hash_of(std::as_bytes(std::span(all)));
}

}  // namespace

std::string hash_state(const std::vector<nn::StateEntry>& state, ProcessGroup& group) {
  const PurposeScope purpose("hash_state");
  Lines lines;
  nn::visit_full_state(state, group, [&](const std::string& name, const Tensor& full) {
    const Tensor here = contiguous(full);
    add_line(lines, name, here.dtype(), here.shape(),
             {static_cast<const std::byte*>(here.raw()), static_cast<std::size_t>(here.bytes())});
  });
  return group.rank() == 0 ? hash_of(lines) : "";
}

std::string hash_save(const CheckpointReader& save) {
  Lines lines;
  std::vector<std::byte> bytes;
  for (const PieceEntry& piece : save.manifest().pieces) {
    const std::string name = stored_name(piece.kind, piece.name);
    if (lines.contains(name)) continue;  // another piece of it
    bytes.resize(static_cast<std::size_t>(numel(piece.shape) * byte_size(piece.dtype)));
    save.read_box(piece.kind, piece.name, piece.dtype, piece.shape, whole_box(piece.shape), bytes);
    add_line(lines, name, piece.dtype, piece.shape, bytes);
  }
  return hash_of(lines);
}

}  // namespace sherd::ckpt
