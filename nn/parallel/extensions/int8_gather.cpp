#include "nn/parallel/extensions/int8_gather.h"

#include "runtime/op/rows/ops.h"

namespace sherd::nn {

GatherTransform int8_gather(int block) {
  check_block(block, "int8_gather");
  GatherTransform transform{.name = "int8"};
  transform.encode = [block](const Tensor& shard) -> std::vector<Tensor> {
    if (shard.ndim() < 2 || !is_quantizable(shard.dtype())) return {shard};
    QuantizedBlocks blocks = quantize_blocks(shard, block);
    return {std::move(blocks.values), std::move(blocks.scales)};
  };
  transform.decode = [block](std::span<const Tensor> encoded, const Tensor& rows) {
    if (encoded.size() == 1) copy_into(rows, encoded[0]);
    else dequantize_blocks_into(rows, encoded[0], encoded[1], block);
  };
  return transform;
}

}  // namespace sherd::nn
