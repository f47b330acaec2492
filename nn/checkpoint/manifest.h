#pragma once
// What a save holds and where. A save is a folder of its own (saves.h):
//
//   DIR/step-000120/rank-00000.safetensors ...   one file per rank
//                   manifest.json                written last, by rename: from then on it is a save
//
// Other saves stay untouched until then, so a crash or a full disk at any moment costs only the new one.
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
  Shape shape;  ///< global
  Box box;
  std::string file;  ///< inside the save's folder
  std::uint64_t checksum = 0;
  std::int64_t bytes = 0;
  int part = 0;  ///< among the boxes of the tensor in its file; most ranks have one
  friend bool operator==(const PieceEntry&, const PieceEntry&) = default;
};

using StateValue = std::variant<std::int64_t, double, std::string>;

struct Manifest {
  std::int64_t step = 0;
  int world_size = 1;
  std::string run;         ///< which run saved it; a resumed run keeps the name
  std::string files;       ///< folder of the rank files below the manifest's; empty, the same one, since version 3
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

/// Called by one rank when all files of the save DIR/NAME are written: checks that the pieces cover every tensor
/// exactly, and writes the manifest. Blocks on the disk. On failure it throws Error and there is no such save.
void commit(const std::string& dir, const std::string& name, const Manifest& manifest);

/// The manifest of the newest save at `path` (list_saves). Throws Error naming the file if it is missing, damaged, of
/// another version, or if its pieces do not cover their tensors exactly.
Manifest read_manifest(const std::string& path);

}  // namespace sherd
