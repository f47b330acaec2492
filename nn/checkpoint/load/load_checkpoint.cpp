// load_checkpoint() of training_state.h: each rank reads its shards, or rows of them that it exchanges with others.
#include <algorithm>
#include <exception>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dtensor/below.h"
#include "dtensor/mesh.h"
#include "dtensor/transition/redistribute.h"
#include "nn/checkpoint/format/rank_file.h"
#include "nn/checkpoint/load/read_layout.h"
#include "nn/checkpoint/local_box.h"
#include "nn/checkpoint/shared_scalars.h"
#include "nn/checkpoint/training_state.h"
#include "runtime/autograd/autograd.h"
#include "runtime/comm/group/agree.h"
#include "runtime/exec/purpose.h"
#include "runtime/op/copy/offload.h"
#include "runtime/op/rows/ops.h"
#include "runtime/tensor/indices.h"

namespace sherd::nn {

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
    places.push_back({state_tensor(entry).dtype(), ckpt::stored_name(entry.kind, entry.name), &entry});
  std::ranges::stable_sort(
      places, [](const Place& a, const Place& b) { return ckpt::lies_before(a.dtype, a.stored, b.dtype, b.stored); });
  std::vector<const StateEntry*> order;
  for (const Place& place : places) order.push_back(place.entry);
  return order;
}

/// First failure of a rank that cannot read. The rank still takes part in the exchanges that its peers wait in, and
/// throws after them.
class FirstFailure {
 public:
  template <class Work>
  void note(const Work& work) {
    if (error_) return;
    try {
      work();
    } catch (const ckpt::DamagedSave& error) { keep(error.what(), true); } catch (const std::exception& error) {
      keep(error.what(), false);
    }
  }
  bool has_failed() const { return error_ != nullptr; }
  /// For peers, as their note_peer() reads it; empty without a failure.
  const std::string& text() const { return text_; }
  void note_peer(const std::string& name, std::string_view text) {
    note([&] {
      const std::string reason = fmt::format("{}: {}", name, text.substr(1));
      if (text.front() == kDamaged) throw ckpt::DamagedSave(reason);
      throw Error(reason);
    });
  }
  void rethrow() const {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  static constexpr char kDamaged = 'd', kOther = 'o';
  void keep(std::string_view what, bool is_damaged) {
    error_ = std::current_exception();
    text_ = (is_damaged ? kDamaged : kOther) + std::string(what);
  }
  std::exception_ptr error_;
  std::string text_;
};

/// Ranks that have exchanged rows and columns.
struct Exchange {
  DeviceMesh mesh;
  int axis;
};

/// What load_checkpoint() has done so far.
struct Load {
  FirstFailure failure{};
  std::vector<const StateEntry*> changed{};
  std::vector<Exchange> exchanges{};  // each group once, in the same order on all ranks

  void note_exchange(const Spec& from, const Spec& to) {
    const DeviceMesh mesh = to.mesh();
    for (int axis = 0; axis < mesh.ndim(); ++axis) {
      const auto is_same = [&](const Exchange& each) { return &each.mesh.group(each.axis) == &mesh.group(axis); };
      if (from.placement(axis) != to.placement(axis) && std::ranges::none_of(exchanges, is_same))
        exchanges.push_back({mesh, axis});
    }
  }
  /// What one rank could not read its peers were given as if it were right: they fail with it. Axis after axis, so that
  /// it comes to all who had a part of an exchange over several.
  void share_failure() {
    for (const Exchange& each : exchanges) {
      const std::vector<std::string> texts = gather_text(each.mesh.group(each.axis), failure.text());
      for (const std::size_t rank : indices(texts))
        if (!texts[rank].empty())
          failure.note_peer(fmt::format("rank {} along {}", rank, each.mesh.axis_name(each.axis)), texts[rank]);
    }
  }
  /// Part of it is of the checkpoint, and part is not.
  void tear(std::string_view reason) {
    for (const StateEntry* entry : changed) entry->slot->mark_torn(fmt::format("a load has failed ({})", reason));
  }
};

/// A rank without elements reads none, and a ghost has nothing to read into; both check name, dtype and shape.
Tensor read(const ckpt::CheckpointReader& reader, const StateEntry& entry, const ckpt::Box& box,
            FirstFailure& failure) {
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
void load_exchanged(const ckpt::CheckpointReader& reader, const StateEntry& entry, const Spec* read_as, Load& load) {
  const Tensor& value = state_tensor(entry);
  const Shape& shape = state_shape(entry);
  load.note_exchange(*read_as, Spec::from(value));
  load.changed.push_back(&entry);  // on all ranks, whichever of them fails
  Tensor part;
  try {
    part = read(reader, entry, {read_as->local_offset(shape), read_as->local_shape(shape)}, load.failure);
    part = to(std::move(part), value.local().device());  // where the groups of its mesh communicate
  } catch (...) {                                        // out of memory: there is nothing to take part with
    abort_peers(*read_as);
    throw;
  }
  const Tensor own = redistribute(Tensor::distributed(shape, read_as, std::move(part)), &Spec::from(value)).local();
  load.failure.note([&] {
    if (own.numel() > 0) copy_into(value.local().detach(), own);
  });
}

void load_own_boxes(const ckpt::CheckpointReader& reader, const StateEntry& entry, Load& load) {
  load.failure.note([&] {
    for (const ckpt::LocalPart& part : ckpt::local_parts(state_tensor(entry), state_shape(entry))) {
      Tensor loaded = read(reader, entry, part.box, load.failure);
      if (load.failure.has_failed()) return;
      load.changed.push_back(&entry);
      if (loaded.numel() > 0) copy_into(part.values, std::move(loaded));
    }
  });
}

void load_entry(const ckpt::CheckpointReader& reader, const StateEntry& entry, Load& load) {
  const Tensor& value = state_tensor(entry);
  check(!value.local().is_meta(), "\"{}\" has no memory to load its values into; call model.materialize() first",
        entry.name);
  load.failure.note([&] {
    if (home_of(value)) value.local().storage()->settle();  // all of it is written: a write that failed is no error
  });
  if (const Spec* read_as = ckpt::read_layout(value, state_shape(entry), reader.pieces_of(entry.kind, entry.name)))
    load_exchanged(reader, entry, read_as, load);
  else load_own_boxes(reader, entry, load);
  load.failure.note([&] { leave_memory(value); });
}

}  // namespace

void load_checkpoint(const ckpt::CheckpointReader& reader, const std::vector<StateEntry>& state) {
  const PurposeScope purpose("load_checkpoint");
  const GradMode off(false);
  ckpt::SharedScalars scalars(state, [&](const StateEntry& entry) -> std::optional<float> {
    if (entry.usually && !reader.contains(entry.kind, entry.name)) return std::nullopt;
    float value = 0;
    reader.read_box(entry.kind, entry.name, DType::f32, {}, ckpt::whole_box({}),
                    std::as_writable_bytes(std::span(&value, 1)));
    return value;
  });
  Load load;
  try {
    for (const StateEntry* entry : in_file_order(state)) {
      if (!entry->usually) load_entry(reader, *entry, load);
      else
        load.failure.note([&] {
          load.changed.push_back(entry);
          scalars.load(*entry);
        });
    }
    load.share_failure();
    load.failure.rethrow();
  } catch (...) {
    load.tear(current_exception_text());
    throw;
  }
  for (const StateEntry& entry : state) {
    if (entry.usually) entry.slot->mark_whole();
    else mark_loaded(entry);
  }
}

}  // namespace sherd::nn
