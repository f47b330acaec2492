#pragma once
// What a run trains on: the same text on all ranks, and which rows of a batch each has.
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "nn/checkpoint/format/manifest.h"
#include "nn/data/token_data.h"
#include "runtime/comm/group/process_group.h"
#include "runtime/op/core/tensor.h"

namespace sherd::train {

/// Rows of a rank in a batch of `ranks` ranks with data of their own, cut into micro-batches: neighbouring ones, whose
/// gradients a rank adds up before ranks add theirs. Else a micro-batch of all ranks together is the same run of rows
/// on any number of ranks, which add up its gradients first.
struct BatchRows {
  std::int64_t count = 0, micro = 0;
  int rank = 0, ranks = 1;
  bool are_neighbours = true;
  /// The row of the batch that row `i` of this rank is.
  std::int64_t of_batch(std::int64_t i) const {
    return are_neighbours ? rank * count + i : (i / micro * ranks + rank) * micro + i % micro;
  }
};

class RunData {
 public:
  RunData() = default;
  explicit RunData(TokenData tokens) : tokens_(std::make_shared<const TokenData>(std::move(tokens))) {}

  /// Null before there is any.
  const std::shared_ptr<const TokenData>& tokens() const { return tokens_; }
  const TokenData* operator->() const { return tokens_.get(); }

  /// The first of the ranks that see the same files of one host reads them for all. Collective. Error, on every rank,
  /// unless all see the same; `path` is where.
  void agree(ProcessGroup& group, const std::string& path);
  /// The same of data whose content is known: an earlier group has agreed on it, or this rank has read it.
  void read_content() { content_ = tokens_->files().content_hash().to_text(); }
  void compare(ProcessGroup& group, const std::string& path) const;
  /// For a save.
  void note(ckpt::Manifest& manifest) const;
  /// Error, that of a resume from `resume`, unless `saved` was trained on it.
  void check_is_of(const ckpt::Manifest& saved, const std::string& path, const std::string& resume) const;

  /// Tokens and targets of batch number `batch`, i32 [rows.count, sequence], on the host.
  std::pair<Tensor, Tensor> training_batch(std::uint64_t seed, std::int64_t batch, const BatchRows& rows,
                                           std::int64_t sequence) const;

 private:
  std::shared_ptr<const TokenData> tokens_;
  std::string content_;  // ContentHash::to_text()
};

}  // namespace sherd::train
