// Collectives as rounds of show, meet, read. Which rank reads what:
//
//   all_gather      share r is shown by rank r                every rank copies all other shares
//   broadcast       one share, shown by the root              every rank copies it
//   reduce_scatter  every rank shows all shares               rank r combines share r of all ranks
//   all_reduce      the same, then rank r shows its result    every rank copies all other shares
//   small all_reduce: one share, shown by all                 every rank combines everything
#include "runtime/comm/board/board_lane.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <optional>
#include <vector>

#include "runtime/comm/board/board_group.h"
#include "runtime/comm/board/byte_stream.h"
#include "runtime/comm/board/elements.h"
#include "runtime/comm/board/exchange.h"
#include "runtime/comm/board/mail.h"
#include "runtime/comm/board/rounds.h"
#include "runtime/comm/board/split_call.h"
#include "runtime/comm/group/agree.h"
#include "runtime/comm/group/part_checks.h"
#include "runtime/comm/group/subject.h"
#include "runtime/exec/queue.h"
#include "runtime/exec/trace.h"
#include "runtime/tensor/for_scope.h"

namespace sherd::comm {

namespace {
// In meet(): something else moves the bytes, and takes the time.
thread_local constinit bool moves_elsewhere __attribute__((tls_model("initial-exec"))) = false;
}  // namespace

BoardLane::BoardLane(BoardGroup& group, GroupFacts facts, const std::shared_ptr<std::byte>& memory,
                     const BoardOptions& options)
    : HostGroup(std::move(facts)), group_(group), board_(memory, options) {}

// Small calls need no thread: their halves run where they are issued and where somebody waits.
void BoardLane::issue(Collective call, const CollectiveSite& site) {
  check_issue(*this, call, site);
  auto& lane = static_cast<BoardLane&>(this->lane(site.queue.name()));
  if (!SplitCall::fits(call, lane)) return issue_on_host(*this, std::move(call), site);
  QueueWork work = work_of(lane, call, site);
  const auto split = std::make_shared<SplitCall>(std::move(call), lane);
  work.begin = [split, subject = site.subject, part = site.part] {  // runs inside of submit()
    const SubjectScope scope(subject, part);
    split->begin();
  };
  work.is_ready = [split] { return split->is_ready(); };
  work.run = [split, subject = std::string(site.subject), part = std::string(site.part)] {
    const SubjectScope scope(subject, part);
    split->finish();
  };
  site.queue.submit(std::move(work));
}

HostGroup& BoardLane::lane(std::string_view queue) { return group_.lane(queue); }

HostGroup& BoardLane::lane(int index) { return group_.lane(index); }

void BoardLane::shape_link(const LinkShape& shape) { group_.shape_link(shape); }

std::shared_ptr<ProcessGroup> BoardLane::subgroup(std::span<const int>, std::string_view) {
  fail("subgroup() of lane {}: call it on lane 0, which is the group", board_.memory().lane());
}

void BoardLane::reset() {
  fail("reset() of lane {}: only the whole group can be reset; call it on lane 0", board_.memory().lane());
}

/// Validates a call. The peers may be on their way into it, so a mistake fails the group.
template <class Body>
void BoardLane::checked(CommOp op, Body&& body) {
  try {
    body();
  } catch (const Error& error) {
    const std::string text = fmt::format("{}: {}", comm::name(op), error.message());
    board_.memory().poison(fmt::format("rank {} made a call that is wrong: {}", board_.memory().root_rank(), text));
    throw Error(text);
  }
}

/// Runs one call, of all ranks or with one peer. If an exception leaves it early, the group is failed, and peers that
/// still read this rank's tensors are waited for, because the caller may free them next.
template <class Body>
void BoardLane::enter(CommOp op, const Fingerprint& call, std::int64_t num_bytes, Body&& body, Mail* mail) {
  const auto start = BoardClock::now();
  std::optional<TraceSpan> waiting;
  if (board_.memory().lane() == 0)
    waiting.emplace(kWaitName, SpanKind::wait, num_bytes);  // queues record their own work
  if (Trace* trace = waiting ? waiting->trace() : nullptr)
    waiting->set_detail(trace->intern(fmt::format("{} of {} ranks ({})", comm::name(op), size(), kind())));
  board_.take_copied();  // of a call that failed
  try {
    if (mail) mail->enter(call, start);
    else board_.enter(call, start);
    body();
    if (Link* const link = group_.link()) board_.sleep_until(link->pass(board_.arrivals().met_at, op, num_bytes));
    board_.leave();
  } catch (const std::exception& error) {
    board_.memory().poison(
        fmt::format("rank {} failed in {}: {}", board_.memory().root_rank(), call.text(), error.what()));
    await_unread(board_);
    board_.leave();
    throw;
  }
  count(op, num_bytes, start);
}

/// Counts a call that ends now, in which this thread has been since `start`.
void BoardLane::count(CommOp op, std::int64_t num_bytes, BoardClock::time_point start) {
  const auto end = BoardClock::now(), last_arrival = std::clamp(board_.arrivals().last, start, end);
  if (last_arrival > start) note_skew({to_nanoseconds(start), to_nanoseconds(last_arrival)});
  std::lock_guard lock(counts_mutex_);
  if (!is_agreeing()) {
    CommCounts::Item& item = counts_.of(op);
    item.calls += 1;
    item.bytes += num_bytes;
    item.copied += board_.take_copied();
  }
  if (!moves_elsewhere) counts_.seconds += std::chrono::duration<double>(end - start).count();
  skew_seconds_ += std::chrono::duration<double>(last_arrival - start).count();
  if (op != CommOp::send && op != CommOp::recv) lateness_.add(board_.arrivals().lateness().count());
}

void BoardLane::run(const Collective& call) {
  switch (call.op) {
    case CommOp::all_gather: return run_gather(call);
    case CommOp::reduce_scatter: return run_scatter(call);
    case CommOp::all_reduce: return run_reduce(call);
    case CommOp::broadcast: return run_broadcast(call);
    case CommOp::all_to_all: return run_swap(call);
    case CommOp::barrier: return run_barrier();
    case CommOp::send:
    case CommOp::recv: return run_pair(call);
  }
}

void BoardLane::meet(const Collective& collective) {
  const ForScope<bool> elsewhere(&moves_elsewhere, true);
  if (collective.op == CommOp::send || collective.op == CommOp::recv) return run_pair(collective, /*moves=*/false);
  Fingerprint call = board_.open_call(collective.op);
  describe(collective, call);
  enter(collective.op, call, collective.bytes(), [&] { board_.meet(); });
}

std::string BoardLane::failure() {
  return board_.memory().is_poisoned() ? board_.memory().poison_reason() : board_.watch().lost_peer();
}

BoardLane::Opened BoardLane::open(const Collective& call) {
  Opened opened{board_.open_call(call.op), Shares(size())};
  checked(call.op, [&] {
    if (call.op == CommOp::all_gather) {
      for (const CollectivePart& part : call.parts) open_gather(part, opened);
      opened.call.close();
    } else {
      for (const CollectivePart& part : call.parts) open_scatter(part, call.reduction, opened);
      opened.call.close_with_reduction(call.reduction);
    }
  });
  return opened;
}

void BoardLane::open_gather(const CollectivePart& part, Opened& opened) const {
  check_counts(part.counts, size(), part.blocks);
  check_data(part.out.address, sum(part.counts));
  check_source(part);
  opened.call.add_part(part.out_type(), part.counts, part.dtype, part.blocks);
  opened.num_bytes += sum(part.counts) * byte_size(part.out_type());
  if (part.is_in_place(rank())) return opened.shares.add(part.out.address, part.dtype, part.counts);
  check_data(part.in.address, part.counts[static_cast<std::size_t>(rank())]);
  opened.shares.add(part.out.address, part.out_type(), part.counts, rank(), part.in.address, part.dtype, part.blocks);
}

void BoardLane::open_scatter(const CollectivePart& part, const ReduceOptions& options, Opened& opened) const {
  check_counts(part.counts, size(), part.blocks);
  check_data(part.in.address, sum(part.counts));
  check_data(part.out.address, part.counts[static_cast<std::size_t>(rank())]);
  check_reducible(part.dtype, options);
  check_casts(part);
  opened.call.add_part(part.wire_type(), part.counts, part.dtype, part.blocks);
  opened.num_bytes += sum(part.counts) * part.wire_size();
  opened.shares.add(part.in.address, part.dtype, part.counts, part.blocks);
}

void BoardLane::run_gather(const Collective& collective) {
  const Opened opened = open(collective);
  return enter(CommOp::all_gather, opened.call, opened.num_bytes, [&] {
    Exchange exchange(board_, opened.shares, 1, rank());
    if (!exchange.is_in_place()) copy_sources(board_, collective.parts, opened.shares);
    while (exchange.next()) {
      exchange.show(rank());
      exchange.meet();
      read_gather(board_, exchange, collective.parts, opened.shares);
    }
    exchange.finish();
  });
}

void BoardLane::run_scatter(const Collective& collective) {
  const Opened opened = open(collective);
  return enter(CommOp::reduce_scatter, opened.call, opened.num_bytes, [&] {
    Exchange exchange(board_, opened.shares, opened.shares.num_shares());
    while (exchange.next()) {
      show_scatter(board_, exchange);
      exchange.meet();
      read_scatter(board_, exchange, collective, opened.shares);
    }
    exchange.finish();
  });
}

void BoardLane::run_reduce(const Collective& collective) {
  const std::vector<CollectivePart>& parts = collective.parts;
  const ReduceOptions& options = collective.reduction;
  Fingerprint call = board_.open_call(CommOp::all_reduce);
  std::int64_t num_bytes = 0;
  checked(CommOp::all_reduce, [&] {
    for (const CollectivePart& part : parts) {
      add_flat(call, part, part.out.address);
      check_reducible(part.dtype, options);
      num_bytes += part.counts[0] * byte_size(part.dtype);
    }
    call.close_with_reduction(options);
  });
  const bool is_small = num_bytes <= kSmallBytes;
  Shares shares(is_small ? 1 : size());
  for (const CollectivePart& part : parts) shares.add_even(part.out.address, part.dtype, part.counts[0]);
  return enter(CommOp::all_reduce, call, num_bytes, [&] {
    copy_sources(board_, parts);  // before ranks meet, for where peers then read them in place
    Exchange exchange(board_, shares, shares.num_shares());
    std::vector<const std::byte*> inputs(static_cast<std::size_t>(size()));
    const int own_share = is_small ? 0 : rank();
    const bool streams = num_bytes >= kStreamBytes;
    while (exchange.next()) {
      for (int share = 0; std::cmp_less(share, shares.num_shares()); ++share)
        if (is_small || share != own_share) exchange.show(share);
      exchange.meet();
      for (const Piece& piece : exchange.pieces(own_share))
        reduce_piece(board_, exchange, own_share, piece, inputs, target(parts[piece.strip], piece),
                     reduction_of(options, size(), piece.dtype), streams);
      if (is_small) continue;
      exchange.show(own_share);
      exchange.meet();
      for (int peer = 0; peer < size(); ++peer)
        if (peer != rank()) copy_share(board_, exchange, peer, peer, parts, streams);
    }
    exchange.finish();
  });
}

void BoardLane::run_broadcast(const Collective& collective) {
  const int root = collective.peer;
  Fingerprint call = board_.open_call(CommOp::broadcast);
  Shares shares(1);
  checked(CommOp::broadcast, [&] {
    check(root >= 0 && root < size(), "the root is {}, the group has {} ranks; give a root in 0..{}", root, size(),
          size() - 1);
    for (const CollectivePart& part : collective.parts) {
      add_flat(call, part, part.out.address);
      shares.add_even(part.out.address, part.dtype, part.counts[0]);
    }
    call.close_with_root(root);
  });
  return enter(CommOp::broadcast, call, shares.num_bytes(), [&] {
    if (rank() == root) copy_sources(board_, collective.parts);
    Exchange exchange(board_, shares, 1);
    while (exchange.next()) {
      if (rank() == root) exchange.show(0);
      exchange.meet();
      if (rank() != root) copy_share(board_, exchange, root, 0, collective.parts, shares.num_bytes() >= kStreamBytes);
    }
    exchange.finish();
  });
}

void BoardLane::run_swap(const Collective& collective) {
  Fingerprint call = board_.open_call(CommOp::all_to_all);
  std::int64_t num_bytes = 0;
  checked(CommOp::all_to_all, [&] {
    for (const CollectivePart& part : collective.parts) {
      check_counts(part.counts, size());
      check_counts(part.out_counts, size());
      check_data(part.in.address, sum(part.counts));
      check_data(part.out.address, sum(part.out_counts));
      call.add_part(part.dtype, {});
      num_bytes += sum(part.counts) * byte_size(part.dtype);
    }
    call.close();
  });
  return enter(CommOp::all_to_all, call, num_bytes, [&] { swap_parts(board_, collective.parts); });
}

void BoardLane::run_pair(const Collective& collective, bool moves) {
  const CommOp op = collective.op;
  const int peer = collective.peer;
  Fingerprint call;
  ByteStream stream;
  Mail mail(board_, op, peer);
  checked(op, [&] {
    check(peer >= 0 && peer < size() && peer != rank(), "the peer is rank {}; give another rank of the {} in the group",
          peer, size());
    call = mail.open_call();
    for (const CollectivePart& part : collective.parts) {
      const void* const data = (op == CommOp::send ? part.in : part.out).address;
      add_flat(call, part, data);
      if (moves) stream.add(data, static_cast<std::size_t>(part.counts[0] * byte_size(part.dtype)));
    }
    call.close();
  });
  return enter(op, call, collective.bytes(), [&] { mail.transfer(stream); }, &mail);
}

void BoardLane::run_barrier() {
  Fingerprint call = board_.open_call(CommOp::barrier);
  call.close_without_list();
  enter(CommOp::barrier, call, 0, [&] { board_.meet(); });
}

void BoardLane::abort(std::string_view reason) {
  board_.memory().poison(fmt::format("rank {} aborted the group: {}", board_.memory().root_rank(), reason));
}

SharedHeap BoardLane::shared_heap() const {
  const BoardOptions& options = board_.memory().options;
  if (options.heap_bytes == 0) return {};
  return {{options.root ? options.root->memory : board_.memory().bytes, board_.memory().heap(rank())},
          options.heap_bytes};
}

}  // namespace sherd::comm
