#pragma once
// The collectives of one host, written once for ranks that are threads and ranks that are processes.
#include <memory>
#include <string>

#include "runtime/comm/board.h"
#include "runtime/comm/process_group.h"

namespace sherd::comm {

/// Runs every collective to its end inside the call, so the returned Work is complete. Reductions run in rank order 0
/// .. n-1 whatever the sizes, so their bits are the same for threads and processes, and for all_reduce and
/// reduce_scatter. A call that is wrong on one rank only raises Error there and CommError on the peers.
class BoardGroup final : public ProcessGroup {
 public:
  /// `kind` is a literal.
  BoardGroup(std::string_view kind, std::unique_ptr<Board> board);

  int rank() const override { return board_->rank(); }
  int size() const override { return board_->size(); }
  std::string_view kind() const override { return kind_; }

  WorkPtr all_gather(std::span<const GatherPart> parts) override;
  WorkPtr reduce_scatter(std::span<const ScatterPart> parts, ReduceOptions options) override;
  WorkPtr all_reduce(std::span<const FlatPart> parts, ReduceOptions options) override;
  WorkPtr broadcast(std::span<const FlatPart> parts, int root) override;
  void barrier() override;

  void abort(std::string_view reason) override;
  void reset() override;
  void set_deadline(std::chrono::nanoseconds deadline) override;
  const CommCounts& counts() const override { return counts_; }

 private:
  template <class Body>
  void checked(CommOp op, Body&& body);
  template <class Body>
  WorkPtr run(const Fingerprint& call, CommCounts::Item& item, std::int64_t num_bytes, Body&& body);
  Fingerprint open(CommOp op) const { return Fingerprint(op, board_->next_sequence()); }
  void check_counts(std::span<const std::int64_t> counts) const;

  std::string_view kind_;
  std::unique_ptr<Board> board_;
  CommCounts counts_;
};

}  // namespace sherd::comm
