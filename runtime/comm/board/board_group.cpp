// Collectives as rounds of show, meet, read. Which rank reads what:
//
//   all_gather      lane r is shown by rank r                  every rank copies all other lanes
//   broadcast       one lane, shown by the root                every rank copies it
//   reduce_scatter  every rank shows all lanes                 rank r combines lane r of all ranks
//   all_reduce      the same, then rank r shows its result     every rank copies all other lanes
//   small all_reduce: one lane, shown by all                   every rank combines everything
#include "runtime/comm/board/board_group.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <optional>
#include <vector>

#include "runtime/comm/board/byte_stream.h"
#include "runtime/comm/board/copy.h"
#include "runtime/comm/board/exchange.h"
#include "runtime/comm/board/reduce.h"
#include "runtime/comm/board/swap.h"
#include "runtime/exec/queue.h"
#include "runtime/exec/trace.h"

namespace sherd::comm {

namespace {

class DoneWork final : public Work {
 public:
  void wait() override {}
};

std::byte* target(void* data, const Piece& piece) { return static_cast<std::byte*>(data) + piece.byte_first(); }

void check_data(const void* data, std::int64_t count) {
  check(data != nullptr || count == 0, "the data pointer is null but there are {} elements", count);
}

CommCounts::Item CommCounts::* item_of(CommOp op) {
  constexpr CommCounts::Item CommCounts::* items[] = {
      &CommCounts::all_gather, &CommCounts::reduce_scatter, &CommCounts::all_reduce, &CommCounts::broadcast,
      &CommCounts::barrier,    &CommCounts::all_to_all,     &CommCounts::send,       &CommCounts::recv};
  return items[static_cast<int>(op)];
}

std::int64_t sum(std::span<const std::int64_t> counts) {
  std::int64_t total = 0;
  for (const std::int64_t count : counts) total += count;
  return total;
}

Reduction reduction_of(const ReduceOptions& options, int size, DType dtype) {
  const double factor = options.kind == ReduceKind::avg ? options.scale / size : options.scale;
  return {.kind = options.kind, .factor = factor, .accumulate = false, .in = dtype, .wire = dtype, .out = dtype};
}

Reduction reduction_of(const ReduceOptions& options, int size, const ScatterPart& part) {
  Reduction reduction = reduction_of(options, size, part.dtype);
  reduction.accumulate = part.accumulate;
  reduction.wire = part.wire.value_or(part.dtype);
  reduction.out = part.out_dtype.value_or(part.dtype);
  return reduction;
}

/// Bytes that an element to be scattered takes on its way.
std::int64_t wire_size(const ScatterPart& part) {
  return std::min(byte_size(part.dtype), byte_size(part.wire.value_or(part.dtype)));
}

void check_scatter_types(const ScatterPart& part) {
  const DType wire = part.wire.value_or(part.dtype), out = part.out_dtype.value_or(part.dtype);
  check((wire == part.dtype && out == part.dtype) || (is_floating(part.dtype) && is_floating(wire) && is_floating(out)),
        "{} cannot travel as {} and arrive as {}; only floats are cast", name(part.dtype), name(wire), name(out));
}

/// Combines one piece of all ranks, in rank order, into `out`.
void reduce_piece(Board& board, const Exchange& exchange, int lane, const Piece& piece,
                  std::span<const std::byte*> inputs, std::byte* out, const Reduction& reduction, bool streams) {
  for (std::size_t rank = 0; rank < inputs.size(); ++rank)
    inputs[rank] = exchange.at(static_cast<int>(rank), lane, piece);
  reduce(inputs, out, piece.count, reduction, streams);
  board.count_copied(piece.count * byte_size(reduction.out));
}

/// Copies one lane of a rank to this rank's tensors.
template <class Part>
void copy_lane(Board& board, const Exchange& exchange, int from, int lane, std::span<const Part> parts, bool streams) {
  for (const Piece& piece : exchange.pieces(lane))
    board.count_copied(copy(target(parts[piece.strip].data, piece), piece.dtype, exchange.at(from, lane, piece),
                            exchange.type_at(piece), piece.count, streams));
}

/// Puts this rank's shard in place before it is staged.
void copy_sources(Board& board, std::span<const GatherPart> parts, const Lanes& lanes, int own) {
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const GatherPart& part = parts[i];
    if (part.source == nullptr) continue;
    const auto lane = static_cast<std::size_t>(own);
    auto* to = static_cast<std::byte*>(part.data) + lanes.start(i, lane) * byte_size(part.dtype);
    board.count_copied(copy(to, part.dtype, part.source, part.source_dtype, part.counts[lane], false));
  }
}

void check_source(const GatherPart& part) {
  check(part.source_dtype == part.dtype || (is_floating(part.source_dtype) && is_floating(part.dtype)),
        "a source of {} cannot be gathered as {}; only floats are cast", name(part.source_dtype), name(part.dtype));
}

}  // namespace

BoardGroup::BoardGroup(std::string_view kind, const std::shared_ptr<std::byte>& memory, const BoardOptions& options)
    : kind_(kind), group_(*this), board_(memory, options) {
  for (int channel = 1; channel < kNumChannels; ++channel) {
    BoardOptions lane = options;
    lane.channel = channel;
    channels_.push_back(std::unique_ptr<BoardGroup>(new BoardGroup(*this, memory, lane)));
  }
}

BoardGroup::BoardGroup(BoardGroup& group, const std::shared_ptr<std::byte>& memory, const BoardOptions& options)
    : kind_(group.kind_), group_(group), board_(memory, options) {}

const Abilities& BoardGroup::abilities() const {
  static constexpr Abilities all{
      .casts = true, .uneven = true, .ordered_sum = true, .accumulate = true, .lists = true, .windows = true};
  return all;
}

ProcessGroup& BoardGroup::channel(int index) {
  check(index >= 0 && index < kNumChannels, "channel {} of a process group; give 0..{}", index, kNumChannels - 1);
  return index == 0 ? group_ : *group_.channels_[static_cast<std::size_t>(index) - 1];
}

/// Validates a call. The peers may be on their way into it, so a mistake fails the group.
template <class Body>
void BoardGroup::checked(CommOp op, Body&& body) {
  try {
    body();
  } catch (const Error& error) {
    const std::string text = fmt::format("{}: {}", comm::name(op), error.message());
    board_.poison(fmt::format("rank {} made a call that is wrong: {}", board_.root_rank(), text));
    throw Error(text);
  }
}

/// Runs one call, of all ranks or with one peer. If an exception leaves it early, the group is failed, and peers that
/// still read this rank's tensors are waited for, because the caller may free them next.
template <class Body>
WorkPtr BoardGroup::run(CommOp op, const Fingerprint& call, std::int64_t num_bytes, Body&& body, int peer) {
  const auto start = Board::Clock::now();
  std::optional<TraceSpan> waiting;
  if (board_.channel() == 0) waiting.emplace(kWaitName, SpanKind::wait, num_bytes);  // queues record their own work
  if (Trace* trace = waiting ? waiting->trace() : nullptr)
    waiting->set_detail(trace->intern(fmt::format("{} of {} ranks ({})", comm::name(op), size(), kind_)));
  board_.take_copied();  // of a call that failed
  try {
    if (peer < 0) board_.enter(call, start);
    else board_.enter_pair_call(call, op, peer, start);
    body();
    if (group_.link_) board_.sleep_until(group_.link_->pass(board_.met_at(), op, num_bytes));
    board_.leave();
  } catch (const std::exception& error) {
    board_.poison(fmt::format("rank {} failed in {}: {}", board_.root_rank(), call.text(), error.what()));
    board_.await_unread();
    board_.leave();
    throw;
  }
  const auto end = Board::Clock::now(), last_arrival = std::min(board_.last_arrival(), end);
  if (last_arrival > start) note_skew({Board::nanoseconds(start), Board::nanoseconds(last_arrival)});
  std::lock_guard lock(counts_mutex_);
  CommCounts::Item& item = counts_.*item_of(op);
  item.calls += 1;
  item.bytes += num_bytes;
  item.copied += board_.take_copied();
  counts_.seconds += std::chrono::duration<double>(end - start).count();
  skew_seconds_ += std::chrono::duration<double>(last_arrival - start).count();
  return std::make_unique<DoneWork>();
}

void BoardGroup::check_counts(std::span<const std::int64_t> counts) const {
  check(std::cmp_equal(counts.size(), size()), "counts has {} entries, the group has {} ranks; give one count per rank",
        counts.size(), size());
  for (const std::int64_t count : counts) check(count >= 0, "a count is {}; counts must not be negative", count);
}

WorkPtr BoardGroup::all_gather(std::span<const GatherPart> parts) {
  Fingerprint call = board_.open_call(CommOp::all_gather);
  Lanes lanes(size());
  checked(CommOp::all_gather, [&] {
    for (const GatherPart& part : parts) {
      check_counts(part.counts);
      check_data(part.data, sum(part.counts));
      if (part.source == nullptr) {
        call.add_part(part.dtype, part.counts);
        lanes.add(part.data, part.dtype, part.counts);
        continue;
      }
      check_source(part);
      call.add_part(part.dtype, part.counts, part.source_dtype);
      lanes.add(part.data, part.dtype, part.counts, rank(), part.source, part.source_dtype);
    }
    call.close();
  });
  return run(CommOp::all_gather, call, lanes.num_bytes(), [&] {
    Exchange exchange(board_, lanes, 1, rank());
    const bool streams = lanes.num_bytes() >= kStreamBytes;
    if (!exchange.is_in_place()) copy_sources(board_, parts, lanes, rank());
    while (exchange.next()) {
      exchange.show(rank());
      exchange.meet();
      for (int peer = 0; peer < size(); ++peer)
        if (peer != rank() || exchange.is_in_place()) copy_lane(board_, exchange, peer, peer, parts, streams);
    }
    exchange.finish();
  });
}

WorkPtr BoardGroup::reduce_scatter(std::span<const ScatterPart> parts, ReduceOptions options) {
  Fingerprint call = board_.open_call(CommOp::reduce_scatter);
  Lanes lanes(size());
  std::int64_t num_bytes = 0;
  checked(CommOp::reduce_scatter, [&] {
    for (const ScatterPart& part : parts) {
      check_counts(part.counts);
      check_data(part.in, sum(part.counts));
      check_data(part.out, part.counts[static_cast<std::size_t>(rank())]);
      check_reducible(part.dtype, options);
      check_scatter_types(part);
      call.add_part(part.wire.value_or(part.dtype), part.counts, part.dtype);
      lanes.add(part.in, part.dtype, part.counts);
      num_bytes += sum(part.counts) * wire_size(part);
    }
    call.close_with_reduction(options);
  });
  return run(CommOp::reduce_scatter, call, num_bytes, [&] {
    Exchange exchange(board_, lanes, lanes.num_lanes());
    std::vector<const std::byte*> inputs(lanes.num_lanes());
    while (exchange.next()) {
      for (int peer = 0; peer < size(); ++peer)
        if (peer != rank()) exchange.show(peer);
      exchange.meet();
      for (const Piece& piece : exchange.pieces(rank())) {
        const ScatterPart& part = parts[piece.strip];
        const Reduction reduction = reduction_of(options, size(), part);
        const std::int64_t at = piece.first - lanes.start(piece.strip, static_cast<std::size_t>(rank()));
        reduce_piece(board_, exchange, rank(), piece, inputs,
                     static_cast<std::byte*>(part.out) + at * byte_size(reduction.out), reduction,
                     lanes.num_bytes() >= kStreamBytes);
      }
    }
    exchange.finish();
  });
}

WorkPtr BoardGroup::all_reduce(std::span<const FlatPart> parts, ReduceOptions options) {
  Fingerprint call = board_.open_call(CommOp::all_reduce);
  std::int64_t num_bytes = 0;
  checked(CommOp::all_reduce, [&] {
    for (const FlatPart& part : parts) {
      check(part.count >= 0, "the count is {}; counts must not be negative", part.count);
      check_data(part.data, part.count);
      check_reducible(part.dtype, options);
      call.add_part(part.dtype, std::span(&part.count, 1));
      num_bytes += part.count * byte_size(part.dtype);
    }
    call.close_with_reduction(options);
  });
  const bool is_small = num_bytes <= kSmallBytes;
  Lanes lanes(is_small ? 1 : size());
  for (const FlatPart& part : parts) lanes.add_even(part.data, part.dtype, part.count);
  return run(CommOp::all_reduce, call, num_bytes, [&] {
    Exchange exchange(board_, lanes, lanes.num_lanes());
    std::vector<const std::byte*> inputs(static_cast<std::size_t>(size()));
    const int own_lane = is_small ? 0 : rank();
    const bool streams = num_bytes >= kStreamBytes;
    while (exchange.next()) {
      for (int lane = 0; std::cmp_less(lane, lanes.num_lanes()); ++lane)
        if (is_small || lane != own_lane) exchange.show(lane);
      exchange.meet();
      for (const Piece& piece : exchange.pieces(own_lane))
        reduce_piece(board_, exchange, own_lane, piece, inputs, target(parts[piece.strip].data, piece),
                     reduction_of(options, size(), piece.dtype), streams);
      if (is_small) continue;
      exchange.show(own_lane);
      exchange.meet();
      for (int peer = 0; peer < size(); ++peer)
        if (peer != rank()) copy_lane(board_, exchange, peer, peer, parts, streams);
    }
    exchange.finish();
  });
}

WorkPtr BoardGroup::broadcast(std::span<const FlatPart> parts, int root) {
  Fingerprint call = board_.open_call(CommOp::broadcast);
  Lanes lanes(1);
  checked(CommOp::broadcast, [&] {
    check(root >= 0 && root < size(), "the root is {}, the group has {} ranks; give a root in 0..{}", root, size(),
          size() - 1);
    for (const FlatPart& part : parts) {
      check(part.count >= 0, "the count is {}; counts must not be negative", part.count);
      check_data(part.data, part.count);
      call.add_part(part.dtype, std::span(&part.count, 1));
      lanes.add_even(part.data, part.dtype, part.count);
    }
    call.close_with_root(root);
  });
  return run(CommOp::broadcast, call, lanes.num_bytes(), [&] {
    Exchange exchange(board_, lanes, 1);
    while (exchange.next()) {
      if (rank() == root) exchange.show(0);
      exchange.meet();
      if (rank() != root) copy_lane(board_, exchange, root, 0, parts, lanes.num_bytes() >= kStreamBytes);
    }
    exchange.finish();
  });
}

WorkPtr BoardGroup::all_to_all(std::span<const SwapPart> parts) {
  Fingerprint call = board_.open_call(CommOp::all_to_all);
  std::int64_t num_bytes = 0;
  checked(CommOp::all_to_all, [&] {
    for (const SwapPart& part : parts) {
      check_counts(part.in_counts);
      check_counts(part.out_counts);
      check_data(part.in, sum(part.in_counts));
      check_data(part.out, sum(part.out_counts));
      call.add_part(part.dtype, {});
      num_bytes += sum(part.in_counts) * byte_size(part.dtype);
    }
    call.close();
  });
  return run(CommOp::all_to_all, call, num_bytes, [&] { swap_parts(board_, parts); });
}

WorkPtr BoardGroup::send(std::span<const FlatPart> parts, int to) { return run_pair(CommOp::send, parts, to); }

WorkPtr BoardGroup::recv(std::span<const FlatPart> parts, int from) { return run_pair(CommOp::recv, parts, from); }

WorkPtr BoardGroup::run_pair(CommOp op, std::span<const FlatPart> parts, int peer) {
  Fingerprint call;
  ByteStream stream;
  checked(op, [&] {
    check(peer >= 0 && peer < size() && peer != rank(), "the peer is rank {}; give another rank of the {} in the group",
          peer, size());
    call = board_.open_pair_call(op, peer);
    for (const FlatPart& part : parts) {
      check(part.count >= 0, "the count is {}; counts must not be negative", part.count);
      check_data(part.data, part.count);
      call.add_part(part.dtype, std::span(&part.count, 1));
      stream.add(part.data, static_cast<std::size_t>(part.count * byte_size(part.dtype)));
    }
    call.close();
  });
  const auto transfer = [&] {
    const std::size_t window = board_.options().window_bytes;
    std::size_t at = 0;
    do {  // a piece at least, so that the ranks meet even when there is nothing to move
      if (op == CommOp::send) {
        board_.count_copied(stream.read(board_.mail_window(rank()), at, window));
        board_.post_piece(peer);
      } else {
        board_.await_piece(peer);
        board_.count_copied(stream.write(board_.mail_window(peer), at, window));
        board_.take_piece(peer);
      }
    } while ((at += window) < stream.size());
  };
  return run(op, call, static_cast<std::int64_t>(stream.size()), transfer, peer);
}

void BoardGroup::barrier() {
  run(CommOp::barrier, board_.open_call(CommOp::barrier), 0, [&] { board_.meet(); });
}

void BoardGroup::abort(std::string_view reason) {
  board_.poison(fmt::format("rank {} aborted the group: {}", board_.root_rank(), reason));
}

// A subgroup is reset with the group it was divided from: their poison is one.
void BoardGroup::reset() {
  check(&group_ == this, "reset() of channel {}: only the whole group can be reset; call it on channel 0",
        board_.channel());
  if (root_) return root_->reset();
  const std::vector<std::shared_ptr<BoardGroup>> subgroups = living_subgroups();
  std::vector<Board*> others;
  const auto add_channels = [&](BoardGroup& group) {
    for (const auto& channel : group.channels_) others.push_back(&channel->board_);
  };
  add_channels(*this);
  for (const auto& group : subgroups) {
    others.push_back(&group->board_);
    add_channels(*group);
  }
  try {
    board_.reset(others);
  } catch (const CommError&) {
    board_.leave();
    throw;
  }
}

void BoardGroup::set_deadline(std::chrono::nanoseconds deadline) {
  board_.set_deadline(deadline);
  for (const auto& channel : channels_) channel->set_deadline(deadline);
  for (const auto& group : living_subgroups()) group->set_deadline(deadline);
}

CommCounts BoardGroup::counts() const {
  CommCounts counts;
  {
    std::lock_guard lock(counts_mutex_);
    counts = counts_;
  }
  for (const auto& channel : channels_) counts += channel->counts();
  return counts;
}

double BoardGroup::skew_seconds() const {
  std::lock_guard lock(counts_mutex_);
  return skew_seconds_;
}

SharedHeap BoardGroup::shared_heap() const {
  const BoardOptions& options = board_.options();
  if (options.heap_bytes == 0) return {};
  return {{options.root ? options.root->memory : board_.memory(), board_.heap(rank())}, options.heap_bytes};
}

void BoardGroup::shape_link(const LinkShape& shape) {
  if (&group_ != this) return group_.shape_link(shape);
  link_ = std::make_unique<Link>(shape, size());
}

}  // namespace sherd::comm
