#pragma once
// The ids that a call takes: rows of a table, columns of logits, entries of a dim. A rank may hold a shard of them;
// every rank knows how many exist, so a wrong id is the same error on each.
//
//   0 . . . . first [ here ] . . . . total      is_here: work of this call      exists, but not here: another rank's
#include <cstdint>

#include "runtime/op/attrs/attr_kind.h"
#include "runtime/tensor/error.h"

namespace sherd {

/// Which shard of a vocabulary (rows of a table, columns of logits) a call sees: ids outside it belong to other ranks
/// and count as absent here. total = 0: all of it.
struct VocabularyPart {
  std::int64_t first = 0, total = 0;
  static constexpr AttrField fields[] = {attr<&VocabularyPart::first>("first_id").local(),
                                         attr<&VocabularyPart::total>("total_ids")};
};

/// The ids that a call may be given, 0 to total - 1, and the shard of them that it sees: `here` ids from `first` on.
struct IdShard {
  std::int64_t first = 0, here = 0, total = 0;
  /// All of `n` ids.
  static constexpr IdShard all(std::int64_t n) { return {0, n, n}; }
  /// The shard of `here` ids that the attributes describe.
  static constexpr IdShard part_of(const VocabularyPart& part, std::int64_t here) {
    return part.total == 0 ? all(here) : IdShard{part.first, here, part.total};
  }
  constexpr bool exists(std::int64_t id) const { return id >= 0 && id < total; }
  constexpr bool is_here(std::int64_t id) const { return id >= first && id - first < here; }
};

/// Throws Error unless `here` ids from part.first on are inside the vocabulary.
inline void check_part(const VocabularyPart& part, std::int64_t here) {
  check(part.first >= 0 && part.total >= 0 && (part.total == 0 ? part.first == 0 : here <= part.total - part.first),
        "{} ids from {} on are no part of a vocabulary of {}", here, part.first, part.total);
}

}  // namespace sherd
