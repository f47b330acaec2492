// Groups as items of a stream.
#include <unistd.h>

#include <csignal>
#include <cstring>

#include <fmt/format.h>

#include "tests/support/emulated_nccl/arithmetic.h"
#include "tests/support/emulated_nccl/member.h"
#include "tests/support/emulated_nccl/pump.h"

namespace sherd::cuda::nccl::fake {

namespace {

std::uint64_t value_of(const std::atomic<std::uint64_t>& count) { return count.load(std::memory_order_acquire); }

}  // namespace

struct Member::Item {
  std::vector<Call> calls;
  std::vector<std::uint64_t> numbers;  // of messages, by call; of a collective, its place among those of the group
  std::uint64_t place = 0;             // in the host's order
  std::uint64_t collective = 0, num_collectives = 0;
  bool hangs = false, matches = false;

  bool has_collectives() const { return num_collectives > 0; }
};

void Member::check_call(const Call& call, emulated::Stream* stream) const {
  const char* const name = name_of(call.signature.kind);
  const auto refuse = [&](const std::string& why) {
    throw Refused(Result::invalid_argument, fmt::format("{}: {}", name, why));
  };
  if (!stream) refuse("the stream is not one, or was destroyed");
  if (stream->device != device_)
    refuse(fmt::format("the stream is of device {}, the communicator of device {}", stream->device, device_));
  if (stream->capture) refuse("a stream that captures is not emulated");
  if (bytes_of(call.signature.type) == 0) refuse("there is no such type");
  const bool adds = call.signature.kind == Kind::all_reduce || call.signature.kind == Kind::reduce_scatter ||
                    call.signature.kind == Kind::reduce;
  if (adds && !is_reduced(call.signature.type)) refuse("reductions of this type are not emulated");
  const bool has_root = call.signature.kind == Kind::broadcast || call.signature.kind == Kind::reduce;
  const int other = call.is_collective() ? call.signature.root : call.peer;
  if ((has_root || !call.is_collective()) && (other < 0 || other >= world_))
    refuse(fmt::format("there is no rank {}", other));
  if (const std::uint32_t op = call.signature.op; adds && op >= 5)
    if (op - 5 >= factors_.size() || !factors_[op - 5].live || factors_[op - 5].type != call.signature.type)
      refuse("the operator was destroyed, or is of another type or communicator");
  for (const auto& [what, bytes] :
       {std::pair{"sendbuff", call.reads(rank_, world_)}, {"recvbuff", call.writes(rank_, world_)}}) {
    if (bytes.size == 0) continue;
    const emulated::Memory& memory = emulated::device_memory();
    if (!memory.in_allocation(bytes.begin, bytes.size))
      refuse(fmt::format("{} of {} bytes is not in memory of a device, or was freed", what, bytes.size));
    if (memory.device_of(bytes.begin) != device_)
      refuse(fmt::format("{} is in memory of device {}, the communicator is of device {}", what,
                         memory.device_of(bytes.begin), device_));
  }
  if (!call.keeps_in_place_rules(rank_, world_)) refuse("sendbuff and recvbuff overlap, and not as it works in place");
}

// Also says to the peers, who may be far behind, when in the host's order it came.
void Member::number(Item& item) {
  item.place = order_.next(thread_);
  for (const Call& call : item.calls) {
    const auto peer = static_cast<std::size_t>(std::max(call.peer, 0));
    if (call.is_collective()) {
      item.numbers.push_back(item.num_collectives++);
    } else if (call.signature.kind == Kind::send) {
      item.numbers.push_back(sends_[peer]++);
      mine().pairs[peer].sends.add(item.place);
    } else {
      item.numbers.push_back(receives_[peer]++);
      mine().pairs[peer].receives.add(item.place);
    }
  }
  if (!item.has_collectives()) return;
  item.collective = collectives_++;
  mine().groups.add(item.place);
}

void Member::expect(const Item& item) {
  bool has_expected = false;
  const std::weak_ptr<Member> here = weak_from_this();
  const auto add = [&](int peer, const Call& call, std::uint64_t number, const Issued& (*issued)(RankPart&, int)) {
    if (peer == rank_) return;
    order_.expect({.thread = thread_,
                   .peer = part(peer).thread,
                   .place = item.place,
                   .what = fmt::format("{} (of {})", text_of(call.signature), settings_.name),
                   .place_there = [here, issued, peer, number]() -> std::optional<std::uint64_t> {
                     const auto self = here.lock();
                     return self && !self->stopped_ ? issued(self->part(peer), self->rank_).place_of(number)
                                                    : std::nullopt;
                   },
                   .differs =
                       [here, peer](const std::string& why) {
                         if (const auto self = here.lock(); self && self->configuration_.refuses_orders)
                           self->fail(Result::invalid_usage, fmt::format("{} on rank {}", why, peer));
                       }});
  };
  for (std::size_t i = 0; i < item.calls.size(); ++i) {
    const Call& call = item.calls[i];
    if (call.is_collective()) {
      if (has_expected) continue;
      has_expected = true;
      for (int r = 0; r < world_; ++r)
        add(r, call, item.collective, [](RankPart& p, int) -> const Issued& { return p.groups; });
    } else if (call.signature.kind == Kind::send) {
      add(call.peer, call, item.numbers[i], [](RankPart& p, int r) -> const Issued& { return p.pairs[r].receives; });
    } else {
      add(call.peer, call, item.numbers[i], [](RankPart& p, int r) -> const Issued& { return p.pairs[r].sends; });
    }
  }
}

void Member::issue(std::vector<Call> calls, emulated::Stream& stream) {
  const auto item = std::make_shared<Item>();
  item->calls = std::move(calls);
  number(*item);
  expect(*item);
  const auto handle = reinterpret_cast<cudaStream_t>(&stream);
  begin([] { return true; },
        [this, item, handle] {
          emulated::Stream* const found = gpu_.find(handle);
          if (!found || found->capture)
            throw Refused(Result::invalid_usage,
                          "the stream was destroyed, or began to capture, before the group was on it");
          queue(item, *found);
        });
}

void Member::queue(const std::shared_ptr<Item>& item, emulated::Stream& stream) {
  const auto self = shared_from_this();
  const std::string name = fmt::format("{} of {}", text_of(item->calls.front().signature), settings_.name);
  std::vector<std::shared_ptr<emulated::Op>> before;
  if (last_ && !last_->done) before.push_back(last_);
  gpu_.enqueue(stream, [self, item] { self->post(*item); }, std::move(before));
  gpu_.enqueue(stream, [self, item] { self->finish(*item); }, {}, {},
               {[self, item] { return self->may_finish(*item); }, name});
  last_ = gpu_.enqueue(stream, nullptr, {}, {}, {[self, item] { return self->may_release(*item); }, name});
  if (spans_processes_) pump(gpu_, last_);
}

bool Member::meets_fault(const Item& item) {
  const Fault& fault = configuration_.fault;
  if (fault.rank != rank_ || fault.group != item.place) return false;
  if (fault.kind == Fault::Kind::die) ::kill(::getpid(), SIGKILL);
  if (fault.kind == Fault::Kind::error) fail(Result::remote_error, "an asynchronous error, as was asked for");
  return fault.kind == Fault::Kind::hang || fault.kind == Fault::Kind::error;
}

void Member::lose(const std::string& why) { gpu_.lose(cudaErrorIllegalAddress, "emulated NCCL: " + why); }

void Member::post(Item& item) {
  if (stopped_) return;
  item.hangs = meets_fault(item);
  if (item.hangs) return;
  emulated::Memory& memory = emulated::device_memory();
  memory.open();
  std::uint64_t offset = 0;
  for (std::size_t i = 0; i < item.calls.size(); ++i) {
    const Call& call = item.calls[i];
    const Bytes from = call.reads(rank_, world_);
    if (from.size > 0 && !memory.in_allocation(from.begin, from.size)) {
      lose(fmt::format("{}: sendbuff was freed before the device got to it", text_of(call.signature)));
      break;
    }
    if (offset + from.size > kArenaBytes) {
      lose(fmt::format("a group of more than {} bytes is not emulated", kArenaBytes));
      break;
    }
    std::byte* const copy = board_->arena(rank_) + offset;
    if (from.size > 0) std::memcpy(copy, from.begin, from.size);
    const Posted posted{call.signature, offset};
    if (call.signature.op >= 5) {
      const Factor& factor = factors_[call.signature.op - 5];
      multiply(factor.type, copy, from.size / bytes_of(factor.type),
               factor.device ? factor.device : factor.value.data());
      mine().calls[item.numbers[i]] = {posted.signature, offset};
      mine().calls[item.numbers[i]].signature.op = 5;
    } else if (call.is_collective()) {
      mine().calls[item.numbers[i]] = posted;
    } else if (call.signature.kind == Kind::send) {
      mine().pairs[call.peer].messages[item.numbers[i] % kMaxCalls] = posted;
    }
    offset += (from.size + 15) / 16 * 16;
  }
  memory.close();
  mine().num_calls = item.num_collectives;
  if (item.has_collectives()) mine().posted.store(item.collective + 1, std::memory_order_release);
  for (std::size_t i = 0; i < item.calls.size(); ++i)
    if (item.calls[i].signature.kind == Kind::send)
      mine().pairs[item.calls[i].peer].sent.store(item.numbers[i] + 1, std::memory_order_release);
}

// What ranks gave for one item: "" if they agree.
std::string Member::mismatch(const Item& item) const {
  for (int r = 0; item.has_collectives() && r < world_; ++r) {
    if (part(r).num_calls != mine().num_calls)
      return fmt::format("rank {} has a group of {} calls, rank {} one of {}", rank_, mine().num_calls, r,
                         part(r).num_calls);
    for (std::uint64_t i = 0; i < mine().num_calls; ++i)
      if (const Signature &here = mine().calls[i].signature, &there = part(r).calls[i].signature; here != there)
        return fmt::format("call {} of {} differs: {} on rank {}, {} on rank {}", i + 1, mine().num_calls,
                           text_of(here), rank_, text_of(there), r);
  }
  for (std::size_t i = 0; i < item.calls.size(); ++i) {
    const Call& call = item.calls[i];
    if (call.signature.kind != Kind::recv) continue;
    const Signature& sent = part(call.peer).pairs[rank_].messages[item.numbers[i] % kMaxCalls].signature;
    if (sent.count != call.signature.count || sent.type != call.signature.type)
      return fmt::format("message {} differs: {} on rank {}, {} on rank {}", item.numbers[i] + 1,
                         text_of(call.signature), rank_, text_of(sent), call.peer);
  }
  return {};
}

bool Member::may_finish(Item& item) {
  if (stopped_ || item.matches) return true;
  order_.compare();
  if (result_ != Result::success || item.hangs) return false;
  for (int r = 0; item.has_collectives() && r < world_; ++r)
    if (value_of(part(r).posted) <= item.collective) return false;
  for (std::size_t i = 0; i < item.calls.size(); ++i)
    if (item.calls[i].signature.kind == Kind::recv &&
        value_of(part(item.calls[i].peer).pairs[rank_].sent) <= item.numbers[i])
      return false;
  if (const std::string why = mismatch(item); !why.empty()) {
    fail(Result::invalid_usage, why);
    return false;
  }
  return item.matches = true;
}

void Member::finish_collective(const Item& item, std::size_t index) {
  const Call& call = item.calls[index];
  const std::size_t size = call.bytes(), own = static_cast<std::size_t>(rank_);
  const std::uint64_t i = item.numbers[index];
  std::vector<const std::byte*> parts;
  for (int r = 0; r < world_; ++r) parts.push_back(board_->arena(r) + part(r).calls[i].offset);
  const Signature& s = call.signature;
  const std::uint64_t seed = board_->seed() + (item.collective * kMaxCalls + i) * 0x10001;
  switch (s.kind) {
    case Kind::all_gather:
      for (std::size_t r = 0; r < parts.size(); ++r) std::memcpy(call.out + r * size, parts[r], size);
      return;
    case Kind::broadcast: std::memcpy(call.out, parts[static_cast<std::size_t>(s.root)], size); return;
    case Kind::reduce_scatter:
      for (const std::byte*& part : parts) part += own * size;
      return reduce_parts(s.type, s.op, parts, call.out, s.count, own * s.count, seed);
    default: return reduce_parts(s.type, s.op, parts, call.out, s.count, 0, seed);
  }
}

void Member::finish(const Item& item) {
  emulated::Memory& memory = emulated::device_memory();
  memory.open();
  for (std::size_t i = 0; i < item.calls.size(); ++i) {
    const Call& call = item.calls[i];
    const Bytes to = call.writes(rank_, world_);
    if (to.size == 0) continue;
    if (!memory.in_allocation(to.begin, to.size)) {
      if (!stopped_) lose(fmt::format("{}: recvbuff was freed before the device got to it", text_of(call.signature)));
    } else if (stopped_) {
      std::memset(call.out, emulated::kPoison, to.size);  // anything may be there
    } else if (call.is_collective()) {
      finish_collective(item, i);
    } else {
      const Posted& message = part(call.peer).pairs[rank_].messages[item.numbers[i] % kMaxCalls];
      std::memcpy(call.out, board_->arena(call.peer) + message.offset, to.size);
    }
  }
  memory.close();
  if (stopped_) return;
  if (item.has_collectives()) mine().taken.store(item.collective + 1, std::memory_order_release);
  for (std::size_t i = 0; i < item.calls.size(); ++i)
    if (item.calls[i].signature.kind == Kind::recv)
      mine().pairs[item.calls[i].peer].received.store(item.numbers[i] + 1, std::memory_order_release);
}

bool Member::may_release(const Item& item) const {
  if (stopped_) return true;
  for (int r = 0; item.has_collectives() && r < world_; ++r)
    if (value_of(part(r).taken) <= item.collective) return false;
  for (std::size_t i = 0; i < item.calls.size(); ++i)
    if (item.calls[i].signature.kind == Kind::send &&
        value_of(part(item.calls[i].peer).pairs[rank_].received) <= item.numbers[i])
      return false;
  return true;
}

}  // namespace sherd::cuda::nccl::fake
