// Kernels that hand copies to queues. They run on the rank's thread, take addresses without a wait, and touch no bytes.
#include "runtime/op/copy/offload.h"

#include <algorithm>
#include <cstring>
#include <unordered_map>
#include <utility>

#include "runtime/exec/context.h"
#include "runtime/exec/device_queue.h"
#include "runtime/op/core/dispatch.h"
#include "runtime/op/core/infer.h"
#include "runtime/op/unit/buffer_views.h"

namespace sherd {

namespace {

// ---- what calls must be ----

struct HomeBytes {
  std::int64_t padded = 0, padding_after_the_last = 0;
};

HomeBytes check_homes(const InferCall& call, std::size_t count) {
  check(call.attrs.as<OffloadAttrs>().in_flight >= 1, "{}: {} items in flight; the least is 1", call.op.name,
        call.attrs.as<OffloadAttrs>().in_flight);
  HomeBytes bytes;
  for (std::size_t i = 0; i < count; ++i) {
    const TensorMeta& home = required(call, i);
    check(home.dtype == DType::u8 && home.ndim() == 1 && home.is_contiguous(), "{}: input {} is {}; homes are u8[n]",
          call.op.name, i, home);
    bytes.padded += align(home.numel());
    bytes.padding_after_the_last = align(home.numel()) - home.numel();
  }
  return bytes;
}

Metas infer_fetch(const InferCall& call) {
  return {TensorMeta{.shape = {check_homes(call, call.in.size()).padded}, .dtype = DType::u8}};
}

Metas infer_evict(const InferCall& call) {
  check(call.in.size() >= 1, "evict needs homes and what goes there");
  const auto [bytes, padding] = check_homes(call, call.in.size() - 1);
  const TensorMeta& from = required(call, call.in.size() - 1);
  check(from.dtype == DType::u8 && from.ndim() == 1 && from.is_contiguous() &&
            (from.numel() == bytes || from.numel() == bytes - padding),
        "evict: what goes to the homes is {}; they take u8[{}]", from, bytes);
  return {};
}

Metas infer_fetch_shards(const InferCall& call) {
  check(call.in.size() == 1, "fetch_shards of {} homes; it takes one", call.in.size());
  return infer_fetch(call);
}

Metas infer_fetch_into(const InferCall& call) {
  check(call.in.size() == 2, "fetch_into needs a home and where its bytes go");
  check_homes(call, 1);
  const TensorMeta &home = required(call, 0), &to = required(call, 1);
  check(to.dtype == DType::u8 && to.ndim() == 1 && to.numel() == home.numel() && to.is_contiguous(),
        "fetch_into: where a home u8[{}] goes is {}", home.numel(), to);
  return {};
}

int all_but_the_last(const InferCall& call) { return static_cast<int>(call.in.size()) - 1; }

QueueUse queue_of_offload(AttrsView attrs) {
  const auto& a = attrs.as<OffloadAttrs>();
  const std::string_view of_state = a.device == Device::cpu() ? kDiskQueue : kOffloadQueue;
  return {a.activations ? kActivationsQueue : of_state, static_cast<std::size_t>(a.in_flight)};
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
    if (std::ranges::none_of(loans, [&](const Loan& loan) { return loan.storage == home.storage(); }))
      loans.push_back({home.storage(), !is_fetch});
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

void run_fetch_shards(const KernelCall& call) {
  submit(call, call.in, call.out[0], true);
  call.out[0].storage()->set_version(call.in[0].storage()->version());
}

void run_fetch_into(const KernelCall& call) {
  const Tensor &home = call.in[0], &to = call.in[1];
  Storage& bytes = *to.storage();
  const std::uint32_t version = home.storage()->version();
  if (bytes.is_present() && bytes.version() == version) return;
  bytes.restore_data();
  submit(call, call.in.first(1), to, true);
  bytes.set_version(version);
}

void run_evict(const KernelCall& call) { submit(call, call.in.first(call.in.size() - 1), call.in.back(), false); }

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

constinit const Op op::fetch{
    .name = "fetch",
    .doc = "Starts to read homes u8[n] of a file, or of the host for a device, into one u8[bytes].",
    .attrs = &attr_kind<OffloadAttrs>,
    .infer = infer_fetch,
    .traits = {.collective = true, .issues = true},
    .no_gradient = "moves bytes",
    .account = [](AttrsView) { return MemoryCategory::optimizer; },
    .device = [](AttrsView attrs) { return attrs.as<OffloadAttrs>().device; },
    .queue = queue_of_offload,
};

constinit const Op op::fetch_gradients{
    .name = "fetch_gradients",
    .doc = "Starts to read homes u8[n] of gradients into one u8[bytes].",
    .attrs = &attr_kind<OffloadAttrs>,
    .infer = infer_fetch,
    .traits = {.collective = true, .issues = true},
    .no_gradient = "moves bytes",
    .account = [](AttrsView) { return MemoryCategory::gradients; },
    .device = [](AttrsView attrs) { return attrs.as<OffloadAttrs>().device; },
    .queue = queue_of_offload,
};

constinit const Op op::fetch_shards{
    .name = "fetch_shards",
    .doc = "Starts to read a home u8[n] of a unit's shards into one u8[bytes] of the home's version.",
    .attrs = &attr_kind<OffloadAttrs>,
    .infer = infer_fetch_shards,
    .traits = {.collective = true, .issues = true, .versions = true},
    .no_gradient = "moves bytes",
    .account = [](AttrsView) { return MemoryCategory::parameters; },
    .device = [](AttrsView attrs) { return attrs.as<OffloadAttrs>().device; },
    .queue = queue_of_offload,
};

constinit const Op op::fetch_into{
    .name = "fetch_into",
    .doc = "Starts to read a home u8[n] into u8[n], which it makes present, unless that is of the home's version.",
    .attrs = &attr_kind<OffloadAttrs>,
    .infer = infer_fetch_into,
    .traits = {.collective = true, .issues = true, .effect = true},
    .no_gradient = "effect",
    .device = [](AttrsView attrs) { return attrs.as<OffloadAttrs>().device; },
    .queue = queue_of_offload,
    .residency = {.restores = 1u << 1},
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
  const std::pair<const Op*, Kernel> rows[] = {{&op::fetch, run_fetch},
                                               {&op::fetch_gradients, run_fetch},
                                               {&op::fetch_shards, run_fetch_shards},
                                               {&op::fetch_into, run_fetch_into},
                                               {&op::evict, run_evict}};
  for (const auto& [row, kernel] : rows) {
    table.add({row});
    table.kernel(*row, kernel);
  }
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

Tensor fetch(std::span<const Tensor> homes, const OffloadAttrs& attrs) {
  std::vector<Tensor> in = as_bytes(homes);
  return std::move(call_op(op::fetch, in, attrs)[0]);
}

Tensor fetch_gradients(std::span<const Tensor> homes, const OffloadAttrs& attrs) {
  std::vector<Tensor> in = as_bytes(homes);
  return std::move(call_op(op::fetch_gradients, in, attrs)[0]);
}

Tensor fetch_shards(const Tensor& home, const OffloadAttrs& attrs) {
  Tensor in[] = {home};
  return std::move(call_op(op::fetch_shards, in, attrs)[0]);
}

void fetch_into(const Tensor& home, const Tensor& to, const OffloadAttrs& attrs) {
  Tensor in[] = {home, to};
  call_op(op::fetch_into, in, attrs);
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
