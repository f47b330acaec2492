// Kernels that hand copies to queues. They run on the rank's thread, take addresses without a wait, and touch no bytes.
#include "runtime/op/offload.h"

#include <cstring>
#include <utility>

#include "runtime/exec/context.h"
#include "runtime/exec/device_queue.h"
#include "runtime/op/buffer_views.h"
#include "runtime/op/dispatch.h"
#include "runtime/op/infer.h"

namespace sherd {

namespace {

// ---- what calls must be ----

std::int64_t check_homes(const InferCall& call, std::size_t count) {
  check(call.attrs.as<OffloadAttrs>().in_flight >= 1, "{}: {} items in flight; the least is 1", call.op.name,
        call.attrs.as<OffloadAttrs>().in_flight);
  std::int64_t bytes = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const TensorMeta& home = required(call, i);
    check(home.dtype == DType::u8 && home.ndim() == 1 && home.is_contiguous(), "{}: input {} is {}; homes are u8[n]",
          call.op.name, i, home);
    bytes += align(home.numel());
  }
  return bytes;
}

Metas infer_fetch(const InferCall& call) {
  return {TensorMeta{.shape = {check_homes(call, call.in.size())}, .dtype = DType::u8}};
}

Metas infer_evict(const InferCall& call) {
  check(call.in.size() >= 1, "evict needs homes and what goes there");
  const std::int64_t bytes = check_homes(call, call.in.size() - 1);
  const TensorMeta& from = required(call, call.in.size() - 1);
  check(from.dtype == DType::u8 && from.ndim() == 1 && from.numel() == bytes && from.is_contiguous(),
        "evict: what goes to the homes is {}; they take u8[{}]", from, bytes);
  return {};
}

int all_but_the_last(const InferCall& call) { return static_cast<int>(call.in.size()) - 1; }

QueueUse queue_of_offload(AttrsView attrs) {
  const auto& a = attrs.as<OffloadAttrs>();
  return {a.device == Device::cpu() ? kDiskQueue : kOffloadQueue, static_cast<std::size_t>(a.in_flight)};
}

// ---- the work ----

struct Move {
  std::byte* home;  // null: a gap, which is filled with zeros
  std::byte* here;
  std::int64_t bytes;
};

std::byte* address_of(const Tensor& t) { return t.storage()->address() + t.offset() * byte_size(t.dtype()); }

// Homes that follow each other, as those of a piece do, are one move. A result has no bytes that nobody has written.
std::vector<Move> moves_between(std::span<const Tensor> homes, const Tensor& here, bool fills_gaps) {
  std::vector<Move> moves;
  std::byte* at = address_of(here);
  for (const Tensor& home : homes) {
    const std::int64_t bytes = home.numel();
    std::byte* const from = address_of(home);
    if (!moves.empty() && moves.back().home + moves.back().bytes == from &&
        moves.back().here + moves.back().bytes == at)
      moves.back().bytes += bytes;
    else if (bytes > 0) moves.push_back({from, at, bytes});
    if (fills_gaps && align(bytes) > bytes) moves.push_back({nullptr, at + bytes, align(bytes) - bytes});
    at += align(bytes);
  }
  return moves;
}

std::span<std::byte> bytes_at(std::byte* address, std::int64_t bytes) {
  return {address, static_cast<std::size_t>(bytes)};
}

// Homes of the host that are in no file are memory of somebody else: for who brings a store of his own.
void move_on_host(const Move& m, bool is_fetch) {
  if (!m.home) {
    std::memset(m.here, 0, static_cast<std::size_t>(m.bytes));
    return;
  }
  OffloadFile* const file = OffloadFile::of(m.home);
  if (file && is_fetch) file->read(m.home, bytes_at(m.here, m.bytes));
  else if (file) file->write(m.home, bytes_at(m.here, m.bytes));
  else if (is_fetch) std::memcpy(m.here, m.home, static_cast<std::size_t>(m.bytes));
  else std::memcpy(m.home, m.here, static_cast<std::size_t>(m.bytes));
}

void submit(const KernelCall& call, std::span<const Tensor> homes, const Tensor& here, bool is_fetch) {
  const QueueUse use = queue_of_offload(call.attrs);
  if (homes.empty()) return;
  std::vector<Loan> loans{{here.storage(), is_fetch}};
  for (const Tensor& home : homes)
    if (loans.back().storage != home.storage()) loans.push_back({home.storage(), !is_fetch});
  const Device device = call.attrs.as<OffloadAttrs>().device;
  Queue& queue = RankContext::current().queue(use.name, device);
  std::function<void()> run;
  if (device == Device::cpu()) {
    run = [moves = moves_between(homes, here, is_fetch), is_fetch] {
      for (const Move& m : moves) move_on_host(m, is_fetch);
    };
  } else if (!RankContext::current().is_ghost()) {
    run = [moves = moves_between(homes, here, false), is_fetch, &stream = static_cast<DeviceQueue&>(queue).stream()] {
      for (const Move& m : moves)
        if (is_fetch) stream.to_device(m.here, m.home, m.bytes);
        else stream.to_host(m.home, m.here, m.bytes);
    };
  }
  queue.submit({.name = call.op.name,
                .bytes = here.numel(),
                .run = std::move(run),
                .loans = loans,
                .max_in_flight = use.max_in_flight});
}

void run_fetch(const KernelCall& call) { submit(call, call.in, call.out[0], true); }
void run_evict(const KernelCall& call) { submit(call, call.in.first(call.in.size() - 1), call.in.back(), false); }

// As rows see them.
std::vector<Tensor> as_bytes(std::span<const Tensor> homes) {
  std::vector<Tensor> bytes;
  bytes.reserve(homes.size() + 1);
  for (const Tensor& home : homes)
    bytes.push_back(run_at(home, home.bytes(), home.offset() * byte_size(home.dtype()), DType::u8));
  return bytes;
}

}  // namespace

constinit const Op op::fetch{
    .name = "fetch",
    .doc = "Starts to read homes u8[n] of a file, or of the host for a device, into one u8[bytes].",
    .attrs = &attr_kind<OffloadAttrs>,
    .infer = infer_fetch,
    .traits = {.collective = true, .issues = true},
    .no_gradient = "moves bytes",
    .category = MemoryCategory::optimizer,
    .device = [](AttrsView attrs) { return attrs.as<OffloadAttrs>().device; },
    .queue = queue_of_offload,
};

constinit const Op op::evict{
    .name = "evict",
    .doc = "Starts to write u8[bytes], laid out as fetch does, to homes u8[n].",
    .attrs = &attr_kind<OffloadAttrs>,
    .infer = infer_evict,
    .traits = {.collective = true, .issues = true, .effect = true},
    .no_gradient = "effect",
    .mutated = all_but_the_last,
    .device = [](AttrsView attrs) { return attrs.as<OffloadAttrs>().device; },
    .queue = queue_of_offload,
};

void register_offload(OpTable& table) {
  table.add({&op::fetch, &op::evict});
  for (const auto backend : {Device::Kind::cpu, Device::Kind::cuda}) {
    table.kernel(op::fetch, backend, run_fetch);
    table.kernel(op::evict, backend, run_evict);
  }
}

OffloadStore::OffloadStore(Device device, const std::string& folder) : device_(device) {
  check(device == Device::cpu() || folder.empty(),
        "offload: what lies on {} goes to memory of the host; leave out the folder \"{}\"", to_string(device), folder);
  check(device != Device::cpu() || !folder.empty(),
        "offload: what lies in memory of the host goes to a file: name a folder");
  if (device == Device::cpu()) file_ = OffloadFile::in(folder);
}

std::string OffloadStore::where() const {
  return file_ ? fmt::format("a file in \"{}\"", file_->folder()) : "memory of the host";
}

Tensor OffloadStore::allocate(const Shape& shape, DType dtype) {
  const std::int64_t bytes = numel(shape) * byte_size(dtype);
  bytes_ += align(bytes);
  Ref<Storage> home;
  if (file_) {
    home = file_->allocate(bytes);
  } else if (RankContext::current().is_ghost()) {
    home = Storage::borrow(nullptr, bytes, {});
  } else {
    std::shared_ptr<std::byte> memory = RankContext::current().device(device_).pinned(bytes);
    std::memset(memory.get(), 0, static_cast<std::size_t>(bytes));
    std::byte* const at = memory.get();
    home = Storage::borrow(at, bytes, [memory = std::move(memory)] {});
  }
  return Tensor::make_dense(std::move(home), shape, dtype, Device::cpu());
}

Tensor fetch(std::span<const Tensor> homes, const OffloadAttrs& attrs) {
  std::vector<Tensor> in = as_bytes(homes);
  return std::move(call_op(op::fetch, in, attrs)[0]);
}

void evict(std::span<const Tensor> homes, const Tensor& from, const OffloadAttrs& attrs) {
  std::vector<Tensor> in = as_bytes(homes);
  in.push_back(from);
  call_op(op::evict, in, attrs);
}

std::vector<Tensor> parts_of(const Tensor& fetched, std::span<const Tensor> homes) {
  std::vector<Tensor> parts;
  std::int64_t at = 0;
  for (const Tensor& home : homes) {
    parts.push_back(view_at(fetched, home.shape(), at, home.dtype()));
    at += align(home.bytes());
  }
  return parts;
}

}  // namespace sherd
