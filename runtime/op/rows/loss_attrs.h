#pragma once
// Attributes of cross entropies.
#include <cstdint>

#include "runtime/op/attrs/attr_kind.h"
#include "runtime/op/rows/id_shard.h"

namespace sherd {

struct CrossEntropyAttrs {
  std::int64_t ignore_index = -100;
  VocabularyPart part{};
  std::int64_t leaves = 1;  ///< equal parts of the rows, whose means are summed; each has a count of its own
  static constexpr AttrField fields[] = {attr<&CrossEntropyAttrs::ignore_index>("ignore"),
                                         attr<&CrossEntropyAttrs::part>().optional(),
                                         attr<&CrossEntropyAttrs::leaves>("leaves").optional()};
};

}  // namespace sherd
