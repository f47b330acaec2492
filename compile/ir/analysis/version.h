#pragma once
// Versions: each write makes one, of the bytes that it writes. A value is a stretch of bytes; at every point of the
// program each of its bytes belongs to the version that wrote it last.
//
//   %0 = full()              v1 = bytes 0..64 of %0         | v1 . . . . . . . . . . |
//   %0:f32[8] = sum($0)      v2 = bytes 0..32 of %0         | v2 . . . . | v1 . . . . |
//   norm(%0)                 reads v2 and v1
#include <cstdint>
#include <span>
#include <vector>

#include "compile/ir/analysis/access.h"

namespace sherd::ir {

using VersionId = std::int32_t;
inline constexpr VersionId kNoVersion = -1;

/// What was written at once, or was there before the step.
struct Version {
  ValueId root = kNoValue;
  ByteRanges::Range bytes{};      ///< of the root
  int node = -1;                  ///< that made it; -1: there before the step, or never written
  AccessKind kind{};              ///< how
  int operand = -1;               ///< through which input or output
  const TensorRef* as = nullptr;  ///< the recipe through which it was written; null: none
  std::int64_t shift = 0;         ///< bytes from the root's start to the value's that `as` names
};

/// Bytes of one version.
struct Part {
  VersionId version;
  ByteRanges::Range bytes;  ///< of the root
};

/// The versions of a program and who reads them. Points into the program, which must stay as it is.
class Versions {
 public:
  struct Use {
    Access access;
    int node;                                 ///< size of the program's nodes: the end of the step
    VersionId makes = kNoVersion;             ///< if it writes
    std::uint32_t first_part, num_parts;      ///< what it finds in its bytes, in ascending order
    std::uint32_t first_reader, num_readers;  ///< nodes that read what it writes over; may name one twice
  };

  /// Linear in the refs where values are written whole.
  explicit Versions(const Program& program);

  std::span<const Version> all() const { return versions_; }
  const Version& operator[](VersionId id) const { return versions_[static_cast<std::size_t>(id)]; }
  /// Uses by one node; at end(), the end of the step, the results and then what slots get.
  std::span<const Use> uses_of(std::size_t node) const {
    return std::span(uses_).subspan(first_use_[node], first_use_[node + 1] - first_use_[node]);
  }
  std::size_t end() const { return first_use_.size() - 2; }
  std::span<const Part> parts_of(const Use& use) const {
    return std::span(parts_).subspan(use.first_part, use.num_parts);
  }
  std::span<const int> readers_before(const Use& use) const {
    return std::span(readers_).subspan(use.first_reader, use.num_readers);
  }
  /// What a root's bytes are at the end.
  std::vector<Part> final_parts(ValueId root) const;
  const ByteRoots& roots() const { return roots_; }

 private:
  /// Bytes of one version, and who has read them all.
  struct Segment {
    ByteRanges::Range bytes;
    VersionId version;
    std::vector<int> readers;
  };
  void add_use(const Access& access, int node);
  std::size_t split(std::vector<Segment>& segments, std::int64_t at);

  const Program& program_;
  const ByteRoots roots_;
  std::vector<Version> versions_;
  std::vector<Use> uses_;
  std::vector<std::size_t> first_use_;
  std::vector<Part> parts_;
  std::vector<int> readers_;
  std::vector<std::vector<Segment>> segments_;  // by root: all of its bytes, ascending
};

}  // namespace sherd::ir
