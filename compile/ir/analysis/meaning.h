#pragma once
// What the bytes of a program mean, as a hash of each version: of the row, its attributes, and the meanings of the
// tensors that it reads. Two words that are mixed differently, of which attributes and texts bring 64 bits: enough
// against mistakes, not against an enemy. What has no influence on values is not in it:
//
//   where bytes are      an in-place result means what a fresh one does; values may be renamed, split and joined
//   when they are        waits, loans, releases and the order of independent nodes
//   how often            a copy means its input, a recomputed tensor and a late gather mean what they did; so does what
//                        was written to a home and comes back from there
//   row, then copy +=    means what the row with += does
//
// Keyed random rows need no care: key, counter and global index are attributes and inputs. What is not seen: whether
// bytes are there in time (order.h, verify.h) and what kernels really do.
#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "compile/ir/analysis/version.h"
#include "runtime/tensor/no_copy.h"

namespace sherd::ir {

struct Meaning {
  std::uint64_t a = 0, b = 0;
  friend bool operator==(const Meaning&, const Meaning&) = default;
};

class Meanings : NoCopy {
 public:
  /// The program outlives it and stays as it is. Linear.
  explicit Meanings(const Program& program);

  Meaning of(VersionId id) const { return of_version_[static_cast<std::size_t>(id)]; }
  /// What a use reads, as a tensor; of a write, what it finds there.
  Meaning of(const Versions::Use& use) const { return of_use_[static_cast<std::size_t>(&use - first_use_)]; }
  const Versions& versions() const { return versions_; }
  const Program& program() const { return program_; }

  /// What the step leaves: each result, each new tensor of a slot or gradient, and the bytes of every argument, slot,
  /// gradient and constant, written or not.
  struct Final {
    ValueId value;  ///< whose bytes it is; kNoValue: a result, or what a slot gets
    int operand;    ///< then: its number among those, results first; else -1
    Meaning meaning{};
    std::uint32_t first_version, num_versions = 0;
  };
  const std::vector<Final>& finals() const { return finals_; }
  /// "result 0", "@w", "@w.grad", "the bytes of argument 1"
  std::string name(const Final& final) const;
  /// What it is made of.
  std::span<const VersionId> versions_of(const Final& final) const {
    return std::span(final_versions_).subspan(final.first_version, final.num_versions);
  }

 private:
  void read_node(std::size_t node);
  void note_copy(std::size_t node);
  VersionId copied(VersionId id) const { return copied_[static_cast<std::size_t>(id)]; }
  Meaning row(std::size_t node) const;
  Meaning read(const Versions::Use& use) const;
  Meaning tensor(const TensorRef& ref, std::int64_t shift, std::span<const Part> parts) const;
  static bool is_read_as_written(const TensorRef& ref, std::int64_t first, const Version& version);
  Meaning bytes_of(VersionId id, std::int64_t first) const;
  Meaning written(const Versions::Use& use, Meaning row) const;
  void add_finals();
  void add_final_bytes(ValueId root);
  Final& add_final(ValueId value, int operand, std::span<const Part> parts);
  Meaning initial(ValueId root) const;

  const Program& program_;
  const Versions versions_;
  const Versions::Use* first_use_;
  std::vector<Meaning> of_version_, of_use_;
  std::vector<Meaning> around_;    // by version: what is between its elements; none: they are dense
  std::vector<VersionId> copied_;  // by version: the one whose bytes it has; itself if nobody has copied it
  std::vector<Final> finals_;
  std::vector<VersionId> final_versions_;
};

/// Throws Error naming what the step leaves differently, and the first node that does something that `before` does
/// not, unless `after` means what `before` does: results with their layouts, what slots get, bytes written in place,
/// guards, units that it leaves gathered, and the tables of slots, settings, layouts, units and constants. Passes that
/// are checked one after the other against one program share its meanings.
void check_same_meaning(const Meanings& before, const Program& after);
inline void check_same_meaning(const Program& before, const Program& after) {
  check_same_meaning(Meanings(before), after);
}

}  // namespace sherd::ir
