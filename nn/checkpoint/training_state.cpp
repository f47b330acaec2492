#include "nn/checkpoint/training_state.h"

#include <algorithm>
#include <exception>
#include <memory>
#include <utility>

#include "dtensor/below.h"
#include "dtensor/redistribute.h"
#include "nn/checkpoint/local_box.h"
#include "nn/checkpoint/manifest_json.h"
#include "nn/checkpoint/read_layout.h"
#include "nn/checkpoint/save_parts.h"
#include "nn/checkpoint/shared_scalars.h"
#include "runtime/autograd/autograd.h"
#include "runtime/comm/group/agree.h"
#include "runtime/op/offload.h"
#include "runtime/op/ops.h"

namespace sherd::nn {

namespace {

std::span<const std::byte> bytes_of(const Tensor& local) {
  return {static_cast<const std::byte*>(local.raw()), static_cast<std::size_t>(local.bytes())};
}

// Tensors that must be copied first, from a device or because they are not dense, are one after the other. Of a home
// outside of memory all that was looked at would stay there: it is left as soon as its bytes are written.
PieceBytes saved_bytes(const Tensor& local) {
  if (home_of(local) && local.is_contiguous())
    return PieceBytes::Give([local](const PieceBytes::Use& use) {
      use(bytes_of(local));
      leave_memory(local);
    });
  if (local.device() == Device::cpu() && local.is_contiguous()) return bytes_of(local);
  return PieceBytes::Give([local](const PieceBytes::Use& use) { use(bytes_of(to(contiguous(local), Device::cpu()))); });
}

}  // namespace

const Tensor& state_tensor(const StateEntry& entry) {
  return entry.parameter ? entry.parameter->sharded_value() : entry.slot->value();
}

const Shape& state_shape(const StateEntry& entry) {
  const Tensor& value = state_tensor(entry);
  return entry.like && entry.like->numel() == value.numel() ? entry.like->shape() : value.shape();
}

void mark_loaded(const StateEntry& entry) {
  entry.slot->mark_whole();
  if (!entry.parameter) return;
  entry.parameter->reshard();
  entry.parameter->mark_initialised();
}

void check_whole(const StateEntry& entry) {
  check(entry.slot->torn().empty(), "\"{}\" ({}) is torn and not saved: {}; load a checkpoint first", entry.name,
        entry.kind, entry.slot->torn());
}

bool is_usual(const StateEntry& entry) {
  return entry.usually && entry.slot->value().storage() == entry.usually->value().storage();
}

std::vector<StateEntry> training_state(Module& model, Optimizer* optimizer, LossScaler* scaler) {
  std::vector<StateEntry> state;
  for (const auto& [name, p] : model.named_parameters()) {
    p->reshard();
    state.push_back({name, "param", p, p, p});
  }
  for (const auto& [name, b] : model.named_buffers()) state.push_back({name, "buffer", b});
  if (scaler)
    for (const LossScalerState& s : scaler->state()) state.push_back({s.name, "loss_scaler", s.slot});
  if (!optimizer) return state;
  for (const OptimizerState& s : optimizer->state())
    state.push_back({s.parameter, "optim." + s.kind, s.slot, nullptr, s.like});
  state.push_back({"step", "optim", &optimizer->step_slot()});
  for (const OptimizerState& s : optimizer->counts())
    state.push_back({s.parameter, "optim." + s.kind, s.slot, nullptr, nullptr, &optimizer->step_slot()});
  return state;
}

void save_checkpoint(const std::string& dir, Manifest manifest, const std::vector<StateEntry>& state,
                     ProcessGroup& group, const Retention& retention) {
  check_has_values(dir);
  const GradMode off(false);
  const std::string save = agreed_save_name(dir, manifest.step, group);
  std::string file;
  together(group, [&] {
    std::vector<Piece> pieces;
    for (OwnPiece& own : own_pieces(state, group.rank())) {
      own.piece.bytes = saved_bytes(own.values);
      pieces.push_back(std::move(own.piece));
    }
    file = rank_file_to_json(write_rank_file(dir, save, group.rank(), pieces));
  });
  const std::vector<std::string> files = gather_text(group, file);
  together(group, [&] {
    if (group.rank() == 0) commit_files(dir, save, std::move(manifest), files, retention);
  });
}

namespace {

/// As their bytes lie in rank files, so that those next to each other share blocks at their edges.
std::vector<const StateEntry*> in_file_order(const std::vector<StateEntry>& state) {
  struct Place {
    DType dtype;
    std::string stored;
    const StateEntry* entry;
  };
  std::vector<Place> places;
  for (const StateEntry& entry : state)
    places.push_back({state_tensor(entry).dtype(), stored_name(entry.kind, entry.name), &entry});
  std::ranges::stable_sort(
      places, [](const Place& a, const Place& b) { return lies_before(a.dtype, a.stored, b.dtype, b.stored); });
  std::vector<const StateEntry*> order;
  for (const Place& place : places) order.push_back(place.entry);
  return order;
}

/// Of a rank that cannot read: it still takes part in the exchanges that its peers wait in, and throws behind them.
class FirstFailure {
 public:
  template <class Work>
  void note(const Work& work) {
    if (error_) return;
    try {
      work();
    } catch (...) { error_ = std::current_exception(); }
  }
  bool has_failed() const { return error_ != nullptr; }
  void rethrow() const {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  std::exception_ptr error_;
};

/// A rank without elements reads none, and a ghost has nothing to read into; both check name, dtype and shape.
Tensor read(const CheckpointReader& reader, const StateEntry& entry, const Box& box, FirstFailure& failure) {
  const DType dtype = state_tensor(entry).dtype();
  const Shape& shape = state_shape(entry);
  Tensor loaded = Tensor::empty(box.shape, dtype);
  failure.note([&] {
    if (loaded.is_ghost()) reader.check_box(entry.kind, entry.name, dtype, shape, box);
    else
      reader.read_box(entry.kind, entry.name, dtype, shape, box,
                      {static_cast<std::byte*>(loaded.raw()), static_cast<std::size_t>(loaded.bytes())});
  });
  return loaded;
}

/// This rank's shard, of which peers have read a part, as it has of theirs.
void load_exchanged(const CheckpointReader& reader, const StateEntry& entry, const Spec* read_as,
                    FirstFailure& failure) {
  const Tensor& value = state_tensor(entry);
  const Shape& shape = state_shape(entry);
  Tensor part;
  try {
    part = read(reader, entry, {read_as->local_offset(shape), read_as->local_shape(shape)}, failure);
    part = to(std::move(part), value.local().device());  // where the groups of its mesh communicate
  } catch (...) {                                        // out of memory: there is nothing to take part with
    abort_peers(*read_as);
    throw;
  }
  const Tensor own = redistribute(Tensor::distributed(shape, read_as, std::move(part)), &Spec::from(value)).local();
  failure.note([&] {
    if (own.numel() > 0) copy_into(value.local().detach(), own);
  });
}

void load_own_boxes(const CheckpointReader& reader, const StateEntry& entry, FirstFailure& failure) {
  failure.note([&] {
    for (const LocalPart& part : local_parts(state_tensor(entry), state_shape(entry))) {
      Tensor loaded = read(reader, entry, part.box, failure);
      if (!failure.has_failed() && loaded.numel() > 0) copy_into(part.values, std::move(loaded));
    }
  });
}

void load_entry(const CheckpointReader& reader, const StateEntry& entry, FirstFailure& failure) {
  const Tensor& value = state_tensor(entry);
  check(!value.local().is_meta(), "\"{}\" has no memory to load its values into; call model.materialize() first",
        entry.name);
  failure.note([&] {
    if (home_of(value)) value.local().storage()->settle();  // all of it is written: a write that failed is no error
  });
  if (const Spec* read_as = read_layout(value, state_shape(entry), reader.pieces_of(entry.kind, entry.name)))
    load_exchanged(reader, entry, read_as, failure);
  else load_own_boxes(reader, entry, failure);
  failure.note([&] {
    leave_memory(value);
    mark_loaded(entry);
  });
}

}  // namespace

void load_checkpoint(const CheckpointReader& reader, const std::vector<StateEntry>& state) {
  const GradMode off(false);
  SharedScalars scalars(state, [&](const StateEntry& entry) -> std::optional<float> {
    if (entry.usually && !reader.contains(entry.kind, entry.name)) return std::nullopt;
    float value = 0;
    reader.read_box(entry.kind, entry.name, DType::f32, {}, whole_box({}),
                    std::as_writable_bytes(std::span(&value, 1)));
    return value;
  });
  FirstFailure failure;
  for (const StateEntry* entry : in_file_order(state)) {
    if (!entry->usually) load_entry(reader, *entry, failure);
    else
      failure.note([&] {
        scalars.load(*entry);
        entry->slot->mark_whole();
      });
  }
  failure.rethrow();
}

}  // namespace sherd::nn
