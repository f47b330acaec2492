#pragma once
// Attributes of embedding; those of gather, scatter and topk are in gather.h.
#include <cstdint>

#include "runtime/op/attrs/attr_kind.h"
#include "runtime/op/rows/id_shard.h"

namespace sherd {

struct EmbeddingAttrs {
  std::int64_t rows = 0;  ///< embedding_backward: rows of the table, or of this rank's shard of it
  VocabularyPart part{};
  static constexpr AttrField fields[] = {attr<&EmbeddingAttrs::rows>("rows").local().optional(),
                                         attr<&EmbeddingAttrs::part>().optional()};
};

}  // namespace sherd
