// Bytes move in chunks through the host group. A piece is dense, and so is the full tensor; the runs that they have in
// common come in the order of both, so each side is a stream from which runs are taken.
#include "nn/checkpoint/full/full_state.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <set>
#include <utility>

#include "nn/checkpoint/format/cover.h"
#include "nn/checkpoint/format/manifest_json.h"
#include "nn/checkpoint/local_box.h"
#include "nn/checkpoint/shared_scalars.h"
#include "runtime/autograd/autograd.h"
#include "runtime/comm/group/agree.h"
#include "runtime/comm/group/host_group.h"
#include "runtime/exec/context.h"
#include "runtime/exec/purpose.h"
#include "runtime/op/copy/offload.h"
#include "runtime/op/rows/ops.h"
#include "runtime/tensor/indices.h"

namespace sherd::nn {

namespace {

std::string key_of(const StateEntry& entry) { return ckpt::stored_name(entry.kind, entry.name); }

void refuse_ghosts(std::string_view what) {
  check(!RankContext::current().is_ghost(), "{}: this rank is a ghost, whose parameters have no values", what);
}

/// The bytes of a dense tensor of the host.
std::byte* raw_bytes(const Tensor& dense) { return static_cast<std::byte*>(dense.raw_to_write()); }

/// The same values, dense and on the host; the tensor itself if it is so already.
Tensor on_host(const Tensor& tensor) { return to(contiguous(tensor.detach()), Device::cpu()); }

/// Bytes that arrive in chunks of a fixed size, the last one smaller, and are wanted in runs. A chunk that lies within
/// a run goes straight to its destination.
class ChunkStream {
 public:
  using Fetch = std::function<void(std::byte* to, std::int64_t bytes)>;
  ChunkStream(std::int64_t bytes, std::int64_t chunk_bytes, Fetch fetch)
      : left_(bytes), chunk_(std::min(chunk_bytes, bytes)), fetch_(std::move(fetch)) {}

  void take(std::byte* out, std::int64_t bytes) {
    while (bytes > 0) {
      const std::int64_t next = std::min(chunk_, left_);
      if (at_ == end_ && bytes >= next) {
        fetch_(out, next);
        left_ -= next;
        out += next;
        bytes -= next;
        continue;
      }
      if (at_ == end_) refill(next);
      const std::int64_t count = std::min(bytes, end_ - at_);
      std::memcpy(out, raw_bytes(buffer_) + at_, static_cast<std::size_t>(count));
      at_ += count;
      out += count;
      bytes -= count;
    }
  }
  void skip(std::int64_t bytes) {
    while (bytes > 0) {
      if (at_ == end_) refill(std::min(chunk_, left_));
      const std::int64_t count = std::min(bytes, end_ - at_);
      at_ += count;
      bytes -= count;
    }
  }

 private:
  void refill(std::int64_t bytes) {
    if (!buffer_.defined()) buffer_ = Tensor::empty({chunk_}, DType::u8, Device::cpu(), MemoryCategory::communication);
    fetch_(raw_bytes(buffer_), bytes);
    left_ -= bytes;
    at_ = 0;
    end_ = bytes;
  }

  std::int64_t left_, chunk_;
  Fetch fetch_;
  Tensor buffer_;
  std::int64_t at_ = 0, end_ = 0;
};

/// Calls send(data, bytes) for the chunks of a dense tensor of the host.
void send_in_chunks(const Tensor& dense, std::int64_t chunk_bytes,
                    const std::function<void(std::byte*, std::int64_t)>& send) {
  std::byte* data = dense.bytes() > 0 ? raw_bytes(dense) : nullptr;
  for (std::int64_t at = 0; at < dense.bytes(); at += chunk_bytes)
    send(data + at, std::min(chunk_bytes, dense.bytes() - at));
}

/// A rank that fails in a transfer lets its peers know, who wait for it.
void transfer(ProcessGroup& group, const std::function<void()>& move) {
  try {
    move();
  } catch (...) {
    group.abort(current_exception_text());
    throw;
  }
}

void check_options(const FullStateOptions& options) {
  check(options.chunk_bytes > 0, "chunk_bytes is {}; a chunk has at least one byte", options.chunk_bytes);
}

void check_has_memory(const StateEntry& entry) {
  check(!state_tensor(entry).local().is_meta(), "\"{}\" has no values; call model.materialize() first", key_of(entry));
}

// ---- get ----

bool gives_piece(const StateEntry& entry, int rank) {
  return !is_usual(entry) && ckpt::saves_box(state_tensor(entry), rank) &&
         numel(ckpt::local_box(state_tensor(entry))) > 0;
}

std::string own_pieces(const std::vector<StateEntry>& state, int rank) {
  std::vector<ckpt::PieceEntry> pieces;
  for (const StateEntry& entry : state) {
    check_has_memory(entry);
    check_whole(entry);
    const Tensor& value = state_tensor(entry);
    const ckpt::Box box = ckpt::local_box(value);  // on every rank: a Partial value is refused
    if (gives_piece(entry, rank))
      pieces.push_back({entry.name, entry.kind, value.dtype(), value.shape(), box, "", 0, 0});
  }
  return ckpt::pieces_to_json(pieces);
}

/// A rank's piece of the tensor whose turn it is.
struct Source {
  int rank = 0;
  ckpt::Box box;
};

/// Per entry of rank 0's state, who gives which box; checks that all ranks mean the same tensors in the same order.
std::vector<std::vector<Source>> plan_sources(const std::vector<StateEntry>& state,
                                              const std::vector<std::string>& texts) {
  std::map<std::string, std::size_t> places;
  for (const std::size_t i : indices(state)) places.emplace(key_of(state[i]), i);
  std::vector<std::vector<Source>> sources(state.size());
  for (const std::size_t rank : indices(texts)) {
    std::size_t next = 0;
    for (const ckpt::PieceEntry& piece : ckpt::pieces_from_json(texts[rank])) {
      const std::string key = ckpt::stored_name(piece.kind, piece.name);
      const auto place = places.find(key);
      check(place != places.end(), "rank {} has \"{}\", which rank 0's state has not", rank, key);
      const Tensor& own = state_tensor(state[place->second]);
      check(piece.dtype == own.dtype() && piece.shape == own.shape(), "\"{}\" is {}{} on rank {}, {} on rank 0", key,
            name(piece.dtype), piece.shape, rank, own);
      check(place->second >= next, "\"{}\" has another place in rank {}'s state than in rank 0's", key, rank);
      next = place->second + 1;
      sources[place->second].push_back({static_cast<int>(rank), piece.box});
    }
  }
  for (const std::size_t i : indices(state)) {
    const Tensor& value = state_tensor(state[i]);
    if (is_usual(state[i]) || value.numel() == 0) continue;
    std::vector<const ckpt::Box*> boxes;
    for (const Source& source : sources[i]) boxes.push_back(&source.box);
    if (const auto wrong = ckpt::first_miscount(boxes, value.shape()))
      fail("\"{}\": {} ranks have its element {}; `group` must be all ranks of the model's meshes", key_of(state[i]),
           wrong->boxes, wrong->element);
  }
  return sources;
}

Tensor receive_full(const StateEntry& entry, const std::vector<Source>& sources, HostGroup& group,
                    std::int64_t chunk_bytes) {
  const Tensor& value = state_tensor(entry);
  const std::int64_t element = byte_size(value.dtype());
  Tensor full = Tensor::empty(value.shape(), value.dtype());
  if (full.numel() == 0) return full;
  std::byte* const out = raw_bytes(full);
  const ckpt::Box whole = ckpt::whole_box(value.shape());
  for (const Source& source : sources) {
    const Tensor own = source.rank == group.rank() ? on_host(value.local()) : Tensor();
    std::int64_t at = 0;
    ChunkStream stream(numel(source.box) * element, chunk_bytes, [&](std::byte* to, std::int64_t bytes) {
      if (own.defined())
        std::memcpy(to, raw_bytes(own) + std::exchange(at, at + bytes), static_cast<std::size_t>(bytes));
      else group.recv({in_place(to, DType::u8, bytes)}, source.rank);
    });
    ckpt::for_each_run(source.box, source.box, whole, [&](std::int64_t, std::int64_t to, std::int64_t count) {
      stream.take(out + to * element, count * element);
    });
  }
  return full;
}

void send_piece(const StateEntry& entry, HostGroup& group, std::int64_t chunk_bytes) {
  send_in_chunks(on_host(state_tensor(entry).local()), chunk_bytes,
                 [&](std::byte* data, std::int64_t bytes) { group.send({in_place(data, DType::u8, bytes)}, 0); });
}

}  // namespace

void visit_full_state(const std::vector<StateEntry>& state, ProcessGroup& group, const FullTensorVisitor& visit,
                      const FullStateOptions& options) {
  const PurposeScope purpose("visit_full_state");
  refuse_ghosts("full_state_dict");
  const GradMode off(false);
  std::string own;
  together(group, [&] {
    check_options(options);
    own = own_pieces(state, group.rank());
  });
  const std::vector<std::string> texts = gather_text(group, own);
  std::vector<std::vector<Source>> sources;
  together(group, [&] {
    if (group.rank() == 0) sources = plan_sources(state, texts);
  });
  for (const std::size_t i : indices(state)) {
    if (is_usual(state[i])) continue;
    Tensor full;
    transfer(group, [&] {
      if (group.rank() == 0) full = receive_full(state[i], sources[i], group.host(), options.chunk_bytes);
      else if (gives_piece(state[i], group.rank())) send_piece(state[i], group.host(), options.chunk_bytes);
    });
    together(group, [&] {
      if (group.rank() == 0) visit(key_of(state[i]), view(std::move(full), state_shape(state[i])));
    });
  }
}

FullState full_state_dict(Module& model, ProcessGroup& group, Optimizer* optimizer, const FullStateOptions& options) {
  const PurposeScope purpose("full_state_dict");
  FullState full;
  visit_full_state(
      training_state(model, optimizer), group,
      [&](const std::string& name, Tensor value) { full.insert_or_assign(name, std::move(value)); }, options);
  return full;
}

// ---- set ----

namespace {

struct Info {
  DType dtype = DType::f32;
  Shape shape;
};
using Infos = std::map<std::string, Info>;

/// What rank 0 has to give, as text.
std::string offer_of(const FullState& tensors) {
  std::vector<ckpt::PieceEntry> offered;
  for (const auto& [name, t] : tensors) {
    check(t.defined(), "the full state's \"{}\" is undefined; a tensor of its dtype and shape is wanted", name);
    offered.push_back({name, "param", t.dtype(), t.shape(), ckpt::whole_box(t.shape()), "", 0, 0});
  }
  return ckpt::pieces_to_json(offered);
}

Infos read_offer(const std::string& text) {
  Infos infos;
  for (const ckpt::PieceEntry& piece : ckpt::pieces_from_json(text)) infos[piece.name] = {piece.dtype, piece.shape};
  return infos;
}

/// "; it lacks "a", "b" and 3 more"; empty without names.
std::string listed(std::string_view what, const std::vector<std::string>& items) {
  constexpr std::size_t kShown = 8;
  if (items.empty()) return "";
  std::string text = fmt::format("; {}", what);
  for (const std::size_t i : up_to(std::min(items.size(), kShown)))
    text += fmt::format("{}{}", i ? ", " : "", items[i]);
  if (items.size() > kShown) text += fmt::format(" and {} more", items.size() - kShown);
  return text;
}

// All that does not fit is said at once. Every rank compares, with its own state, so every rank says it.
void check_fits(const std::vector<StateEntry>& state, const Infos& offered, bool strict) {
  std::vector<std::string> missing, unexpected, other;
  std::set<std::string> known;
  for (const StateEntry& entry : state) {
    check_has_memory(entry);
    const std::string key = key_of(entry);
    const Tensor& value = state_tensor(entry);
    known.insert(key);
    (void)ckpt::local_box(value);  // a Partial value is refused
    const auto found = offered.find(key);
    if (found == offered.end()) {
      if (!entry.usually && strict) missing.push_back(fmt::format("\"{}\"", key));
    } else if (const auto& [dtype, shape] = found->second; dtype != value.dtype() || shape != state_shape(entry)) {
      other.push_back(fmt::format("\"{}\" is {}{} and has to be {}{}", key, name(dtype), shape, name(value.dtype()),
                                  state_shape(entry)));
    }
  }
  for (const auto& [name, info] : offered)
    if (strict && !known.contains(name)) unexpected.push_back(fmt::format("\"{}\"", name));
  const std::string wrong = listed("it lacks ", missing) + listed("the state has no ", unexpected) + listed("", other);
  check(wrong.empty(), "rank 0's full state does not fit{}", wrong);
}

/// Names of what a rank takes of the offer, a line each, in the order in which it does.
std::string taken_names(const std::vector<StateEntry>& state, const Infos& offered) {
  std::string names;
  for (const StateEntry& entry : state)
    if (const std::string key = key_of(entry); offered.contains(key)) names += key + "\n";
  return names;
}

// Tensors are broadcast one after the other: where ranks take others, or in another order, they would be mixed up.
void check_taken_alike(std::string_view own, std::string_view of_rank_0, int rank) {
  const auto next = [](std::string_view& names) {
    const std::size_t end = names.find('\n');
    if (end == names.npos) return std::string("no further tensor");
    const std::string_view name = names.substr(0, end);
    names.remove_prefix(end + 1);
    return fmt::format("\"{}\"", name);
  };
  while (own != of_rank_0) {
    const std::string here = next(own), there = next(of_rank_0);
    check(here == there,
          "rank {}'s state has {} where rank 0's has {}: give the same model and optimizer, their parameters in the "
          "same order, on all ranks",
          rank, here, there);
  }
}

void check_is_plain(const std::string& key, const Tensor& value) {
  check(value.defined() && !value.is_distributed() && !value.is_meta(),
        "the full state's \"{}\" is {}; a plain tensor with values is wanted", key, value);
}

/// Rank 0's tensor, as it was offered.
Tensor given(const MakesFullTensor& make, const std::string& key, const Info& info) {
  const Tensor value = make(key);
  check_is_plain(key, value);
  check(value.dtype() == info.dtype && value.shape() == info.shape, "the full state's \"{}\" is {}, offered was {}{}",
        key, value, name(info.dtype), info.shape);
  return on_host(value);
}

/// Scalars that others share, and those that may: every rank gets rank 0's, by name.
std::map<std::string, float> share_scalars(const std::vector<StateEntry>& state, HostGroup& group,
                                           const MakesFullTensor& make, const Infos& offered) {
  std::set<const Slot*> defaults;
  for (const StateEntry& entry : state)
    if (entry.usually) defaults.insert(entry.usually);
  std::vector<std::string> keys;
  for (const StateEntry& entry : state)
    if ((entry.usually || defaults.contains(entry.slot)) && offered.contains(key_of(entry)))
      keys.push_back(key_of(entry));
  std::string bytes;
  together(group, [&] {
    if (group.rank() != 0) return;
    for (const std::string& key : keys) {
      const auto value = given(make, key, offered.at(key)).item<float>();
      bytes.append(reinterpret_cast<const char*>(&value), sizeof(value));
    }
  });
  bytes = gather_text(group, bytes)[0];
  std::map<std::string, float> scalars;
  for (const std::size_t i : indices(keys))
    std::memcpy(&scalars[keys[i]], bytes.data() + i * sizeof(float), sizeof(float));
  return scalars;
}

/// Keeps this rank's box of the tensor that rank 0 broadcasts; `full` is that tensor there.
void receive_shard(const StateEntry& entry, const Tensor& full, HostGroup& group, std::int64_t chunk_bytes) {
  const Tensor& value = state_tensor(entry);
  const Tensor local = value.local().detach();
  const bool writes_local = local.device() == Device::cpu() && local.is_contiguous();
  if (home_of(local)) local.storage()->settle();  // all of it is written: a write that failed is no error
  const Tensor shard = writes_local ? local : Tensor::empty(local.shape(), local.dtype());
  const std::int64_t element = byte_size(value.dtype()), bytes = value.numel() * element;
  std::byte* const out = shard.bytes() > 0 ? raw_bytes(shard) : nullptr;
  const std::byte* const mine = full.defined() && bytes > 0 ? raw_bytes(full) : nullptr;
  const auto broadcast = [&](std::byte* data, std::int64_t count) {
    group.broadcast({in_place(data, DType::u8, count)}, 0);
  };
  if (full.defined()) send_in_chunks(full, chunk_bytes, broadcast);
  ChunkStream stream(bytes, chunk_bytes, broadcast);
  std::int64_t at = 0;  // in the full tensor, in bytes
  const ckpt::Box box = ckpt::local_box(value);
  if (numel(box) > 0)
    ckpt::for_each_run(
        box, ckpt::whole_box(value.shape()), box, [&](std::int64_t from, std::int64_t to, std::int64_t count) {
          if (mine) {
            std::memcpy(out + to * element, mine + from * element, static_cast<std::size_t>(count * element));
            return;
          }
          stream.skip(from * element - at);
          stream.take(out + to * element, count * element);
          at = (from + count) * element;
        });
  if (!mine) stream.skip(bytes - at);
  if (writes_local) local.storage()->bump_version();
  else if (local.numel() > 0) copy_into(local, shard);
  leave_memory(local);
}

/// Fills `state` from what is offered. `changed` are the slots that have new values, or a part of them.
void take_all(const std::vector<StateEntry>& state, ProcessGroup& group, const MakesFullTensor& make,
              const Infos& offered, std::int64_t chunk_bytes, std::vector<Slot*>& changed) {
  const std::map<std::string, float> values = share_scalars(state, group.host(), make, offered);
  ckpt::SharedScalars scalars(state, [&](const StateEntry& entry) -> std::optional<float> {
    const auto found = values.find(key_of(entry));
    return found == values.end() ? std::nullopt : std::optional(found->second);
  });
  const auto default_of = [&](const StateEntry& entry) {
    return std::ranges::find(state, entry.usually, &StateEntry::slot);
  };
  for (const StateEntry& entry : state) {
    const std::string key = key_of(entry);
    if (entry.usually) {  // without its default it keeps what it has, as that does
      const auto usual = default_of(entry);
      if (values.contains(key) || (usual != state.end() && values.contains(key_of(*usual)))) {
        changed.push_back(entry.slot);
        scalars.load(entry);
        entry.slot->mark_whole();
      }
      continue;
    }
    const auto info = offered.find(key);
    if (info == offered.end()) continue;
    Tensor full;
    together(group, [&] {
      if (group.rank() == 0) full = given(make, key, info->second);
    });
    changed.push_back(entry.slot);
    transfer(group, [&] { receive_shard(entry, full, group.host(), chunk_bytes); });
    entry.slot->mark_whole();
    if (!entry.parameter) continue;
    entry.parameter->reshard();  // what is gathered of the old values is stale
    entry.parameter->mark_initialised();
  }
}

}  // namespace

void load_full_state(const std::vector<StateEntry>& state, ProcessGroup& group, const FullState& tensors,
                     const MakesFullTensor& value, const FullStateOptions& options) {
  const PurposeScope purpose("load_full_state");
  refuse_ghosts("load_full_state_dict");
  const GradMode off(false);
  std::string offer;
  together(group, [&] {
    check_options(options);
    if (group.rank() == 0) offer = offer_of(tensors);
  });
  const Infos offered = read_offer(gather_text(group, offer)[0]);
  const std::string taken = taken_names(state, offered);
  const std::string taken_there = gather_text(group, group.rank() == 0 ? taken : "")[0];
  together(group, [&] {
    check_fits(state, offered, options.strict);
    check_taken_alike(taken, taken_there, group.rank());
  });
  std::vector<Slot*> changed;
  try {
    take_all(state, group, value, offered, options.chunk_bytes, changed);
  } catch (...) {  // part of the state is rank 0's, and part is not
    const std::string reason = fmt::format("a load has failed ({})", current_exception_text());
    for (Slot* slot : changed) slot->mark_torn(reason);
    throw;
  }
}

void load_full_state_dict(Module& model, ProcessGroup& group, const FullState& full, Optimizer* optimizer,
                          const FullStateOptions& options) {
  const PurposeScope purpose("load_full_state_dict");
  together(group, [&] {  // before anything is written
    if (group.rank() == 0)
      for (const auto& [name, tensor] : full) check_is_plain(name, tensor);
  });
  load_full_state(
      training_state(model, optimizer), group, full, [&](const std::string& name) { return full.at(name); }, options);
}

}  // namespace sherd::nn
