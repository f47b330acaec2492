#include "tests/support/bare_group.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "runtime/comm/group/host_group.h"
#include "runtime/exec/device_queue.h"
#include "runtime/tensor/error.h"

namespace sherd::testing {

namespace {

using comm::BareCall;
using comm::RankPiece;
using CallOp = BareCall::Op;

/// The host's copies of what a call reads and writes; of memory of the host it is the memory itself.
class Mirror {
 public:
  explicit Mirror(Queue& queue)
      : queue_(queue.device() == Device::cpu() ? nullptr : static_cast<DeviceQueue*>(&queue)) {}

  const std::byte* read(const void* from, std::int64_t bytes) {
    if (!queue_) return static_cast<const std::byte*>(from);
    std::byte* const here = memory_.emplace_back(queue_->context().pinned(bytes)).get();
    queue_->stream().to_host(here, from, bytes);
    queue_->stream().synchronize();
    return here;
  }
  std::byte* write(void* to, std::int64_t bytes) {
    if (!queue_) return static_cast<std::byte*>(to);
    std::byte* const here = memory_.emplace_back(queue_->context().pinned(bytes)).get();
    written_.push_back({to, here, bytes});
    return here;
  }
  void store() {
    for (const Written& w : written_) queue_->stream().to_device(w.to, w.from, w.bytes);
    if (!written_.empty()) queue_->stream().synchronize();
  }

 private:
  struct Written {
    void* to;
    const std::byte* from;
    std::int64_t bytes;
  };
  DeviceQueue* queue_;
  std::vector<std::shared_ptr<std::byte>> memory_;
  std::vector<Written> written_;
};

template <class T>
T combined(ReduceKind kind, T a, T x) {
  const auto u = convert<std::conditional_t<std::is_integral_v<T>, T, double>>(a);
  const auto v = convert<std::conditional_t<std::is_integral_v<T>, T, double>>(x);
  if (kind == ReduceKind::max) return u > v ? a : x;
  if (kind == ReduceKind::min) return u < v ? a : x;
  if constexpr (std::is_integral_v<T>) {
    const auto p = static_cast<std::uint64_t>(a), q = static_cast<std::uint64_t>(x);
    return static_cast<T>(kind == ReduceKind::product ? p * q : p + q);
  } else {
    return convert<T>(kind == ReduceKind::product ? u * v : u + v);
  }
}

class TestBareGroup final : public comm::BareGroup {
 public:
  explicit TestBareGroup(std::shared_ptr<ProcessGroup> host)
      : BareGroup({host->rank(), host->size(), "bare", host->name(), {.lists = true, .same_counts = true}}),
        host_(std::move(host)) {}

  bool supports(Device) const override { return true; }
  void run(std::span<const BareCall> calls, Queue& queue) override {
    Mirror mirror(queue);
    HostGroup& lane = host().lane(queue.name());
    for (const BareCall& call : calls) {
      check_call(call);
      run(call, lane, mirror);
    }
    mirror.store();
  }
  void exchange(std::span<const RankPiece> sends, std::span<const RankPiece> receives, Queue& queue) override;
  HostGroup& host() override { return host_->host(); }
  std::shared_ptr<comm::BareGroup> subgroup(std::span<const int> ranks, std::string_view label) override {
    return std::make_shared<TestBareGroup>(host_->subgroup(ranks, label));
  }
  void abort(std::string_view reason) override { host_->abort(reason); }
  void reset() override { host_->reset(); }
  void set_deadline(std::chrono::nanoseconds deadline) override { host_->set_deadline(deadline); }

 private:
  int rank() const { return facts().rank; }
  int size() const { return facts().size; }
  std::vector<std::int64_t> counts(std::int64_t count) const {
    return std::vector<std::int64_t>(static_cast<std::size_t>(size()), count);
  }
  void check_call(const BareCall& call) const;
  void run(const BareCall& call, HostGroup& lane, Mirror& mirror);
  std::vector<std::byte> sum(const BareCall& call, std::int64_t count, HostGroup& lane, Mirror& mirror);

  const std::shared_ptr<ProcessGroup> host_;
};

/// Buffers are there, and lie at the same place, at the own part, or apart.
void TestBareGroup::check_call(const BareCall& call) const {
  const bool reads = call.op != CallOp::recv && (call.op != CallOp::broadcast || call.peer == rank());
  const bool writes = call.op != CallOp::send && (call.op != CallOp::reduce || call.peer == rank());
  check(call.count > 0 && (call.in || !reads) && (call.out || !writes) && call.kind != ReduceKind::avg,
        "the library takes elements and addresses: {} elements", call.count);
  check(call.dtype != DType::boolean || call.kind == ReduceKind::max || call.kind == ReduceKind::min ||
            call.op == CallOp::all_gather || call.op == CallOp::broadcast || call.op == CallOp::send ||
            call.op == CallOp::recv,
        "the library has no {} of bool", name(call.kind));
  if (!reads || !writes) return;
  const std::int64_t part = call.count * byte_size(call.dtype);
  const std::int64_t in_bytes = call.op == CallOp::reduce_scatter ? size() * part : part;
  const std::int64_t out_bytes = call.op == CallOp::all_gather ? size() * part : part;
  const auto* const in = static_cast<const std::byte*>(call.in);
  const auto* const out = static_cast<const std::byte*>(call.out);
  const bool apart = in + in_bytes <= out || out + out_bytes <= in;
  const bool in_place = call.op == CallOp::all_gather       ? in == out + rank() * part
                        : call.op == CallOp::reduce_scatter ? out == in + rank() * part
                                                            : in == out;
  check(apart || in_place, "the library's buffers lie apart, or at the own part of each other");
}

/// The sum of `count` elements of each rank, from the last rank to the first, rounded at every step.
std::vector<std::byte> TestBareGroup::sum(const BareCall& call, std::int64_t count, HostGroup& lane, Mirror& mirror) {
  const std::int64_t bytes = count * byte_size(call.dtype);
  std::vector<std::byte> all(static_cast<std::size_t>(size() * bytes));
  lane.all_gather({{.in = {const_cast<std::byte*>(mirror.read(call.in, bytes)), bytes, Device::cpu()},
                    .out = {all.data(), size() * bytes, Device::cpu()},
                    .dtype = call.dtype,
                    .counts = counts(count)}});
  visit_dtype(call.dtype, [&]<class T>(Type<T>) {
    auto* const at = reinterpret_cast<T*>(all.data());
    for (int r = size() - 2; r >= 0; --r)
      for (std::int64_t i = 0; i < count; ++i)
        at[r * count + i] = combined(call.kind, at[(r + 1) * count + i], at[r * count + i]);
  });
  all.resize(static_cast<std::size_t>(bytes));
  return all;
}

void TestBareGroup::run(const BareCall& call, HostGroup& lane, Mirror& mirror) {
  const std::int64_t bytes = call.count * byte_size(call.dtype);
  const auto write = [&](const std::byte* from) {
    std::memcpy(mirror.write(call.out, bytes), from, static_cast<std::size_t>(bytes));
  };
  const auto in = [&] { return Buffer{const_cast<std::byte*>(mirror.read(call.in, bytes)), bytes, Device::cpu()}; };
  switch (call.op) {
    case CallOp::all_gather: {
      const Buffer out{mirror.write(call.out, size() * bytes), size() * bytes, Device::cpu()};
      return lane.all_gather({{.in = in(), .out = out, .dtype = call.dtype, .counts = counts(call.count)}});
    }
    case CallOp::reduce_scatter: return write(sum(call, size() * call.count, lane, mirror).data() + rank() * bytes);
    case CallOp::all_reduce: return write(sum(call, call.count, lane, mirror).data());
    case CallOp::reduce: {
      const std::vector<std::byte> total = sum(call, call.count, lane, mirror);
      return call.peer == rank() ? write(total.data()) : void();
    }
    case CallOp::broadcast: {
      const Buffer out{mirror.write(call.out, bytes), bytes, Device::cpu()};
      return lane.broadcast(
          {{.in = call.peer == rank() ? in() : Buffer{}, .out = out, .dtype = call.dtype, .counts = {call.count}}},
          call.peer);
    }
    case CallOp::send:
      return lane.send({{.in = in(), .out = in(), .dtype = call.dtype, .counts = {call.count}}}, call.peer);
    case CallOp::recv: {
      const Buffer out{mirror.write(call.out, bytes), bytes, Device::cpu()};
      return lane.recv({{.in = out, .out = out, .dtype = call.dtype, .counts = {call.count}}}, call.peer);
    }
  }
}

void TestBareGroup::exchange(std::span<const RankPiece> sends, std::span<const RankPiece> receives, Queue& queue) {
  Mirror mirror(queue);
  std::vector<std::byte> out, in;
  CollectivePart part{.dtype = DType::u8, .counts = counts(0), .out_counts = counts(0)};
  for (int peer = 0; peer < size(); ++peer) {
    for (const RankPiece& piece : sends) {
      if (piece.peer != peer) continue;
      check(peer != rank() && piece.bytes > 0, "the library sends rank {} {} bytes", peer, piece.bytes);
      const std::byte* const from = mirror.read(piece.address, piece.bytes);
      out.insert(out.end(), from, from + piece.bytes);
      part.counts[static_cast<std::size_t>(peer)] += piece.bytes;
    }
    for (const RankPiece& piece : receives)
      if (piece.peer == peer) part.out_counts[static_cast<std::size_t>(peer)] += piece.bytes;
  }
  std::int64_t received = 0;
  for (const std::int64_t bytes : part.out_counts) received += bytes;
  in.resize(static_cast<std::size_t>(received));
  part.in = {out.data(), std::ssize(out), Device::cpu()};
  part.out = {in.data(), received, Device::cpu()};
  host().lane(queue.name()).all_to_all({part});
  const std::byte* next = in.data();
  for (int peer = 0; peer < size(); ++peer)
    for (const RankPiece& piece : receives)
      if (piece.peer == peer) {
        std::memcpy(mirror.write(piece.address, piece.bytes), next, static_cast<std::size_t>(piece.bytes));
        next += piece.bytes;
      }
  mirror.store();
}

}  // namespace

std::shared_ptr<comm::BareGroup> make_bare_group(std::shared_ptr<ProcessGroup> host) {
  return std::make_shared<TestBareGroup>(std::move(host));
}

}  // namespace sherd::testing
