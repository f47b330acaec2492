#pragma once
// Chosen algorithms of matrix products between processes: one small text file per kind of device and library version.
//
//   <folder>/matmul/<hash of machine>.txt      sherd matmul algorithms 1
//                                              NVIDIA H200, compute capability 9.0, ..., cuBLASLt 130100
//                                              <problem> = <algorithm> <checksum>
//
// It is a cache: whatever is wrong with it costs a new choice and is never an error. A file that is no such file, or is
// another machine's, is not read, and is replaced; a damaged line is skipped. A folder that cannot be written is left
// alone after the first attempt. trouble() says so.
#include <map>
#include <optional>
#include <string>

#include "runtime/cuda/gemm/gemm_plan.h"

namespace sherd::cuda {

/// An algorithm as text, and back; the workspace's size is not in it.
std::string to_text(const GemmAlgorithm& algorithm);
std::optional<GemmAlgorithm> algorithm_from_text(const std::string& text);

class AlgorithmCache {
 public:
  /// Reads what is there. `machine` is one line; an empty `folder` keeps nothing.
  AlgorithmCache(const std::string& folder, std::string machine);
  /// "kept in FOLDER", or "not kept: " and why, as far as can be told without writing.
  static std::string describe(const std::string& folder);
  /// The workspace's size is not kept: ask GemmPlan::accepts().
  std::optional<GemmAlgorithm> find(const std::string& problem) const;
  /// Adds to the file what it lacks of this process's choices. Processes that write at once may lose each other's
  /// latest line, never more.
  void keep(const std::string& problem, const GemmAlgorithm& algorithm);
  /// The first thing that was wrong; empty if nothing was.
  const std::string& trouble() const { return trouble_; }
  /// Path of the file; empty without a folder.
  const std::string& path() const { return path_; }
  const std::string& machine() const { return machine_; }

 private:
  using Entries = std::map<std::string, std::string>;  // problem -> algorithm in hexadecimal
  Entries read();
  bool write(const Entries& entries);
  void note(const std::string& what);

  const std::string machine_;
  std::string path_, trouble_;
  bool writable_ = true;
  Entries entries_;
};

}  // namespace sherd::cuda
