// Kernels that hand copies to queues. They run on the rank's thread, take addresses without a wait, and touch no bytes.
#include "runtime/op/copy/offload.h"

#include <algorithm>
#include <cstring>
#include <unordered_map>
#include <utility>

#include "runtime/exec/context.h"
#include "runtime/exec/device_queue.h"
#include "runtime/op/attrs/attr_text.h"
#include "runtime/op/core/dispatch.h"
#include "runtime/op/core/infer.h"
#include "runtime/op/unit/buffer_views.h"
#include "runtime/op/unit/unit.h"
#include "runtime/tensor/indices.h"

namespace sherd {

namespace {

// ---- what calls must be ----

CopyKind kind_of(AttrsView attrs) { return attrs.as<OffloadAttrs>().kind; }

// Homes are written by evicts only, and what is written comes first.
int num_written(const InferCall& call) {
  return kind_of(call.attrs) == CopyKind::evict ? static_cast<int>(call.in.size()) - 1 : 1;
}

Metas infer_copy(const InferCall& call) {
  const auto& a = call.attrs.as<OffloadAttrs>();
  check(a.in_flight >= 1, "{}: {} items in flight; the least is 1", call.op.name, a.in_flight);
  check(call.in.size() >= 2, "{} needs homes, and what comes from there or goes there", call.op.name);
  check(a.kind != CopyKind::refresh || call.in.size() == 2, "{} {} of {} homes; it takes one", call.op.name,
        name(a.kind), call.in.size() - 1);
  const std::size_t here = a.kind == CopyKind::evict ? call.in.size() - 1 : 0;
  std::int64_t padded = 0, padding_after_the_last = 0;
  for (const std::size_t i : indices(call.in)) {
    const TensorMeta& t = required(call, i);
    check(t.dtype == DType::u8 && t.ndim() == 1 && t.is_contiguous(), "{}: input {} is {}; {} u8[n]", call.op.name, i,
          t, i == here ? "where homes go is" : "homes are");
    if (i == here) continue;
    padded += align(t.numel());
    padding_after_the_last = align(t.numel()) - t.numel();
  }
  const std::int64_t bytes = call.in[here].numel();
  check(bytes == padded || bytes == padded - padding_after_the_last,
        "{} {}: input {} is {}; the homes are u8[{}] with what lies between them", call.op.name, name(a.kind), here,
        call.in[here], padded);
  return {};
}

QueueUse queue_of_copy(AttrsView attrs) {
  const auto& a = attrs.as<OffloadAttrs>();
  const std::string_view of_state = a.device == Device::cpu() ? kDiskQueue : kOffloadQueue;
  return {a.activations ? kActivationsQueue : of_state, static_cast<std::size_t>(a.in_flight)};
}

// ---- the work ----

struct Move {
  std::byte* to;
  const std::byte* from;  // null: a gap, which is filled with zeros
  std::int64_t bytes;
};

std::byte* address_of(const Tensor& t) { return t.storage()->address() + t.offset() * byte_size(t.dtype()); }

/// The tensors of a call: its homes, and what holds their bytes one after the other.
struct Sides {
  explicit Sides(const KernelCall& call)
      : is_evict(kind_of(call.attrs) == CopyKind::evict),
        homes(is_evict ? call.in.first(call.in.size() - 1) : call.in.subspan(1)),
        here(is_evict ? call.in.back() : call.in[0]) {}
  const bool is_evict;
  const std::span<const Tensor> homes;
  const Tensor& here;
};

// Homes that follow each other, as those of a piece do, are one move. What is fetched has no bytes that nobody has
// written.
std::vector<Move> moves_of(const Sides& sides, bool fills_gaps) {
  std::vector<Move> moves;
  std::byte* at = address_of(sides.here);
  const std::byte* const end = at + sides.here.numel();
  for (const Tensor& home : sides.homes) {
    const std::int64_t bytes = home.numel(), gap = std::min(align(bytes), end - at) - bytes;
    const Move move = sides.is_evict ? Move{address_of(home), at, bytes} : Move{at, address_of(home), bytes};
    Move* const last = moves.empty() ? nullptr : &moves.back();
    if (last && last->from && last->to + last->bytes == move.to && last->from + last->bytes == move.from)
      last->bytes += bytes;
    else if (bytes > 0) moves.push_back(move);
    if (fills_gaps && !sides.is_evict && gap > 0) moves.push_back({at + bytes, nullptr, gap});
    at += align(bytes);
  }
  return moves;
}

// Homes of the host that are in no file are memory of somebody else: for who brings a store of his own.
void move_on_host(const Move& m) {
  const auto size = static_cast<std::size_t>(m.bytes);
  if (!m.from) std::memset(m.to, 0, size);
  else if (OffloadFile* const home = OffloadFile::of(m.from)) home->read(m.from, {m.to, size});
  else if (OffloadFile* const file = OffloadFile::of(m.to)) file->write(m.to, {m.from, size});
  else std::memcpy(m.to, m.from, size);
}

void submit(const KernelCall& call) {
  const auto& a = call.attrs.as<OffloadAttrs>();
  const Sides sides(call);
  const QueueUse use = queue_of_copy(call.attrs);
  std::vector<Loan> loans{{sides.here.storage(), !sides.is_evict}};
  for (const Tensor& home : sides.homes)
    if (std::ranges::find(loans, home.storage(), &Loan::storage) == loans.end())
      loans.push_back({home.storage(), sides.is_evict});
  Queue& queue = RankContext::current().queue(use.name, a.device);
  std::function<void()> run;
  if (a.device == Device::cpu()) {
    run = [moves = moves_of(sides, true)] { std::ranges::for_each(moves, move_on_host); };
  } else if (!RankContext::current().is_ghost()) {
    run = [moves = moves_of(sides, false), leaves = sides.is_evict,
           &stream = static_cast<DeviceQueue&>(queue).stream()] {
      for (const Move& m : moves)
        if (leaves) stream.to_host(m.to, m.from, m.bytes);
        else stream.to_device(m.to, m.from, m.bytes);
    };
  }
  queue.submit({.name = name(a.kind),
                .bytes = sides.here.numel(),
                .run = std::move(run),
                .loans = loans,
                .max_in_flight = use.max_in_flight});
}

void run_copy(const KernelCall& call) {
  const auto written = call.in.first(static_cast<std::size_t>(num_written({call.op, call.in, call.attrs})));
  const CopyKind kind = kind_of(call.attrs);
  Storage& bytes = *written[0].storage();
  const std::uint32_t version = call.in[1].storage()->version();
  if (kind == CopyKind::refresh) {
    if (bytes.is_present() && bytes.version() == version) return;
    bytes.restore_data();
  }
  submit(call);
  if (kind != CopyKind::evict && call.in.size() == 2) return bytes.set_version(version);
  for (const Tensor& t : written) t.storage()->bump_version();
}

// ---- homes ----

// State of the rank context. Storages tell when they go, which may be after their rank, or in another one's scope.
struct Homes {
  using List = std::unordered_map<std::uint64_t, OffloadHome>;  // by storage
  std::shared_ptr<List> list = std::make_shared<List>();
};

// State of the rank context. A store lives as long as somebody uses it.
struct SharedStores {
  struct Entry {
    Device device;
    std::string folder;
    std::int64_t bytes_in_flight;
    std::weak_ptr<OffloadStore> store;
  };
  std::vector<Entry> list;
};

// As rows see them.
std::vector<Tensor> as_bytes(std::span<const Tensor> homes) {
  std::vector<Tensor> bytes;
  bytes.reserve(homes.size() + 1);
  for (const Tensor& home : homes)
    bytes.push_back(run_at(home, home.bytes(), home.offset() * byte_size(home.dtype()), DType::u8));
  return bytes;
}

}  // namespace

std::string_view name(CopyKind kind) {
  return kind == CopyKind::fetch ? "fetch" : kind == CopyKind::refresh ? "refresh" : "evict";
}
void AttrValue<CopyKind>::print(const CopyKind& value, AttrWriter& out) { out.raw(sherd::name(value)); }
void AttrValue<CopyKind>::read(CopyKind& value, AttrReader& in) {
  value = read_name(in, {CopyKind::fetch, CopyKind::refresh, CopyKind::evict}, "copy");
}

constinit const Op op::copy_start{
    .name = "copy_start",
    .doc = "Starts to copy homes u8[n] into one u8[bytes], or that to the homes; what is written comes first.",
    .attrs = &attr_kind<OffloadAttrs>,
    .infer = infer_copy,
    .traits = {.collective = true, .issues = true, .effect = true, .versions = true},
    .no_gradient = "effect",
    .mutated = num_written,
    .device = [](AttrsView attrs) { return attrs.as<OffloadAttrs>().device; },
    .queue = queue_of_copy,
    .residency = {.restores = 1u << 0, .applies = [](AttrsView attrs) { return kind_of(attrs) == CopyKind::refresh; }},
};

void register_offload(OpTable& table) {
  table.add({&op::copy_start});
  table.kernel(op::copy_start, run_copy);
}

const OffloadHome* home_of(const Tensor& tensor) {
  if (!tensor.defined()) return nullptr;
  const Storage* const storage = tensor.is_distributed() ? tensor.impl()->local->storage.get() : tensor.storage().get();
  return storage ? home_of(*storage) : nullptr;
}

const OffloadHome* home_of(const Storage& storage) {
  if (!storage.is_borrowed()) return nullptr;
  const Homes::List& homes = *RankContext::current().state<Homes>().list;
  const auto found = homes.find(storage.id());
  return found == homes.end() ? nullptr : &found->second;
}

void leave_memory(const Tensor& tensor) {
  if (!home_of(tensor)) return;
  const Tensor local = tensor.local();
  const std::byte* const at = address_of(local);
  if (const OffloadFile* const file = OffloadFile::of(at)) file->leave_memory(at, local.bytes());
}

std::shared_ptr<OffloadStore> OffloadStore::shared(Device device, const std::string& folder,
                                                   std::int64_t bytes_in_flight) {
  auto& stores = RankContext::current().state<SharedStores>().list;
  std::erase_if(stores, [](const SharedStores::Entry& entry) { return entry.store.expired(); });
  for (const SharedStores::Entry& entry : stores)
    if (entry.device == device && entry.folder == folder && entry.bytes_in_flight == bytes_in_flight)
      if (auto store = entry.store.lock()) return store;
  auto store = std::make_shared<OffloadStore>(device, folder, bytes_in_flight);
  stores.push_back({device, folder, bytes_in_flight, store});
  return store;
}

OffloadStore::OffloadStore(Device device, const std::string& folder, std::int64_t bytes_in_flight)
    : device_(device), bytes_in_flight_(bytes_in_flight) {
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
  std::function<void()> gives_back;
  std::byte* at = nullptr;
  if (file_) {
    const Ref<Storage> in_file = file_->allocate(bytes);
    at = in_file->address();
    gives_back = [in_file] {};
  } else if (!RankContext::current().is_ghost()) {
    std::shared_ptr<std::byte> memory = RankContext::current().device(device_).pinned(bytes);
    std::memset(memory.get(), 0, static_cast<std::size_t>(bytes));
    at = memory.get();
    gives_back = [memory = std::move(memory)] {};
  }
  const auto id = std::make_shared<std::uint64_t>(0);
  const std::shared_ptr<Homes::List> homes = RankContext::current().state<Homes>().list;
  Ref<Storage> home =
      Storage::borrow(at, bytes, [id, known = std::weak_ptr(homes), gives_back = std::move(gives_back)] {
        if (const auto list = known.lock()) list->erase(*id);
      });
  *id = home->id();
  homes->emplace(home->id(), OffloadHome{device_, bytes_in_flight_});
  return Tensor::make_dense(std::move(home), shape, dtype, Device::cpu());
}

Tensor fetch(std::span<const Tensor> homes, OffloadAttrs attrs, MemoryCategory account) {
  std::vector<Tensor> in = as_bytes(homes);
  std::int64_t bytes = 0;
  for (const Tensor& home : in) bytes += align(home.numel());
  in.insert(in.begin(), buffer(bytes, account, attrs.device));
  attrs.kind = CopyKind::fetch;
  call_op(op::copy_start, in, attrs);
  return in[0];
}

Tensor fetch_shards(const Tensor& home, OffloadAttrs attrs) {
  Tensor in[] = {buffer(align(home.numel()), MemoryCategory::parameters, attrs.device), home};
  attrs.kind = CopyKind::fetch;
  call_op(op::copy_start, in, attrs);
  return in[0];
}

void fetch_into(const Tensor& home, const Tensor& to, OffloadAttrs attrs) {
  Tensor in[] = {to, home};
  attrs.kind = CopyKind::refresh;
  call_op(op::copy_start, in, attrs);
}

void evict(std::span<const Tensor> homes, const Tensor& from, OffloadAttrs attrs) {
  std::vector<Tensor> in = as_bytes(homes);
  in.push_back(from);
  attrs.kind = CopyKind::evict;
  call_op(op::copy_start, in, attrs);
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
