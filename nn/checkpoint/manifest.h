#pragma once
// What a checkpoint holds and where. A checkpoint is a folder:
//
//   DIR/manifest.json                            the commit point: replaced by rename, names the save that counts
//   DIR/step-000120/rank-00000.safetensors ...   one file per rank
//
// A save writes its files into a folder of its own and commits by renaming the manifest. Until then the manifest
// names the previous save, which stays untouched, so a crash or a full disk at any moment costs only the new save.
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <variant>

#include "nn/checkpoint/box.h"
#include "runtime/tensor/dtype.h"
#include "runtime/tensor/error.h"
#include "runtime/tensor/shape.h"

namespace sherd {

/// A box of one tensor, and where its bytes are.
struct PieceEntry {
  std::string name;  ///< of the parameter
  std::string kind;  ///< "param", "optim.m", ...
  DType dtype = DType::f32;
  Shape shape;  ///< of the whole tensor
  Box box;
  std::string file;  ///< inside the save's folder
  std::uint64_t checksum = 0;
  std::int64_t bytes = 0;
  friend bool operator==(const PieceEntry&, const PieceEntry&) = default;
};

using StateValue = std::variant<std::int64_t, double, std::string>;

struct Manifest {
  std::int64_t step = 0;
  int world_size = 1;
  std::string save;        ///< the save's folder in DIR
  std::string config;      ///< TOML
  std::string vocabulary;  ///< Vocabulary::to_text()
  std::map<std::string, StateValue> state;
  std::deque<PieceEntry> pieces;  ///< grows without a copy of what it holds

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

/// The folder in `dir` for a save at `step`: never the one that the manifest names now. Every rank gets the same
/// answer as long as no rank commits meanwhile, so a save ends with a barrier after commit().
std::string save_name(const std::string& dir, std::int64_t step);

/// Called by one rank when all rank files are written: checks that the pieces cover every tensor exactly, makes
/// `manifest` the one that counts, then removes the files of earlier and of abandoned saves. Blocks on the disk.
/// On failure it throws Error and the previous checkpoint is untouched.
void commit(const std::string& dir, const Manifest& manifest);

/// Reads and checks DIR/manifest.json; throws Error naming the file if it is missing, damaged, of another version,
/// or if its pieces do not cover their tensors exactly.
Manifest read_manifest(const std::string& dir);

}  // namespace sherd
