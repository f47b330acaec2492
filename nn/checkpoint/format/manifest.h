#pragma once
// What a save holds and where. A save is a folder of its own (saves.h):
//
//   DIR/step-000120/rank-00000.safetensors ...   one file per rank
//                   manifest.json                written last, by rename: from then on it is a save
//
// Other saves stay untouched until then, so a crash or a full disk at any moment costs only the new one.
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "nn/checkpoint/format/block_sums.h"
#include "nn/checkpoint/format/box.h"
#include "runtime/tensor/dtype.h"
#include "runtime/tensor/error.h"
#include "runtime/tensor/shape.h"

namespace sherd::ckpt {

/// A box of one tensor, and where its bytes are.
struct PieceEntry {
  std::string name;  ///< of the parameter
  std::string kind;  ///< "param", "optim.m", ...
  DType dtype = DType::f32;
  Shape shape;  ///< global
  Box box;
  std::string file;     ///< inside the save's folder
  std::int64_t at = 0;  ///< of its first byte in the file; since version 4
  std::int64_t bytes = 0;
  int part = 0;                                ///< among the boxes of the tensor in its file; most ranks have one
  std::optional<std::uint64_t> checksum = {};  ///< of its bytes; until version 3, where files had no sums of blocks
  friend bool operator==(const PieceEntry&, const PieceEntry&) = default;
};

/// What one rank has written of a save.
struct RankFile {
  std::string name;  ///< inside the save's folder
  BlockSums blocks;
  std::vector<PieceEntry> pieces;
};

using StateValue = std::variant<std::int64_t, double, std::string>;

struct Manifest {
  std::int64_t step = 0;
  int world_size = 1;
  std::string run;         ///< which run saved it; a resumed run keeps the name
  std::string files;       ///< folder of the rank files below the manifest's; empty, the same one, since version 3
  std::string config;      ///< TOML
  std::string plan;        ///< print() of the TrainingPlan; empty: one of defaults, or older than plans
  std::string vocabulary;  ///< Vocabulary::to_text(); empty if it is not known what text the tokens stand for
  std::map<std::string, StateValue> state;
  std::deque<PieceEntry> pieces;                         ///< grows without a copy of what it holds
  std::map<std::string, BlockSums, std::less<>> blocks;  ///< of the rank files, by name; since version 4

  /// The state under `key`; throws Error naming it if it is missing or of another type.
  template <class T>
  const T& state_value(const std::string& key) const {
    const auto found = state.find(key);
    check(found != state.end(), "the checkpoint's state has no \"{}\"", key);
    const T* value = std::get_if<T>(&found->second);
    check(value != nullptr, "the checkpoint's state \"{}\" has another type than expected", key);
    return *value;
  }
};

/// Puts what a rank has written into the manifest.
void add(Manifest& manifest, const RankFile& file);

/// Called by one rank when all files of the save DIR/NAME are written: checks that the pieces cover every tensor
/// exactly, and writes the manifest. Blocks on the disk. On failure it throws Error and there is no such save.
void commit(const std::string& dir, const std::string& name, const Manifest& manifest);

/// A save of a program that is newer than this one: good, as far as can be told, and not to be passed over.
class NewerVersion : public Error {
 public:
  using Error::Error;
};

/// The manifest of the newest save at `path` (list_saves). Throws Error naming the file if it is missing, damaged, or
/// if its pieces do not cover their tensors exactly; NewerVersion, with what to do, if it is of a later version.
Manifest read_manifest(const std::string& path);

}  // namespace sherd::ckpt
