#pragma once
// A gather that encodes shards before it and decodes them after: a second unit lies in between, whose pieces are the
// encoded tensors.
//
//   shards  | p0 rows of this rank | p1 ...     --encode-->  | p0 values | p0 scales | p1 values | ...   of this rank
//                                                                       gather_start
//   full    | p0 ............ full | p1 ...     <--decode--  | p0 values of rank 0, of rank 1 ... | p0 scales ... | ...
//
// The encoded buffers live from start() to finish(), in the account of communication.
#include <memory>
#include <vector>

#include "nn/parallel/shard/gather/unit_gather.h"
#include "runtime/memory/storage.h"
#include "runtime/op/core/step_names.h"

namespace sherd::nn {

class TransformedGather final : public UnitGather, public StorageOwner {
 public:
  /// For one unit. Error naming transform and unit unless both functions are there, and what encode() makes of all
  /// shards of a parameter has the same number of tensors in the same types.
  TransformedGather(GatherTransform transform, const UnitLayout& unit);
  ~TransformedGather() override;

  void materialize(const UnitLayout& unit, Device device) override;
  void start(const UnitLayout& unit, const Tensor& shards, const Tensor& full) override;
  void finish(const UnitLayout& unit, const Tensor& shards, const Tensor& full) override;
  void cancel() override;

  // StorageOwner: rows alone bring and free the encoded bytes.
  void ensure_present(Storage& storage) override;
  void begin_replay(Storage& storage) override { storage.release_data(); }  // a replay may have been left

 private:
  /// One tensor that a parameter is encoded as: a piece of the encoded unit, and its shape on each shard.
  struct Part {
    std::size_t piece = 0;
    std::vector<Shape> shapes{};
  };
  void lay_out(const UnitLayout& unit);
  void encode(const UnitLayout& unit, std::size_t piece, const Tensor& shards, const Tensor& encoded) const;
  void decode(const UnitLayout& unit, std::size_t piece, const Tensor& full) const;

  const GatherTransform transform_;
  UnitLayoutPtr unit_{};                  // that is gathered
  UnitLayoutPtr layout_{};                // of what is gathered for it
  std::vector<std::vector<Part>> parts_;  // by piece of unit_
  Tensor encoded_;                        // u8 [full_bytes of layout_]: of all shards
  std::shared_ptr<const NamedStorage> encoded_name_;
};

}  // namespace sherd::nn
