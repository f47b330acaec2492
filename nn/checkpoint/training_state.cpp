#include "nn/checkpoint/training_state.h"

#include <bit>
#include <map>
#include <memory>
#include <utility>

#include "nn/checkpoint/local_box.h"
#include "nn/checkpoint/manifest_json.h"
#include "nn/parallel/fully_shard.h"
#include "nn/parallel/shard_group.h"
#include "runtime/autograd/autograd.h"
#include "runtime/comm/agree.h"
#include "runtime/op/ops.h"

namespace sherd::nn {

namespace {

std::span<const std::byte> bytes_of(const Tensor& local) {
  return {static_cast<const std::byte*>(local.raw()), static_cast<std::size_t>(local.bytes())};
}

// Tensors that must be copied first, from a device or because they are not dense, take turns in `staging`.
PieceBytes saved_bytes(const Tensor& local, const std::shared_ptr<Tensor>& staging) {
  if (local.device() == Device::cpu() && local.is_contiguous()) return bytes_of(local);
  return PieceBytes::Fetch([local, staging] {
    *staging = to(contiguous(local), Device::cpu());
    return bytes_of(*staging);
  });
}

// The shards hold the state; a module may have run since `state` was made, and left what it gathered.
void reshard(const std::vector<StateEntry>& state) {
  for (const StateEntry& entry : state)
    if (entry.parameter)
      if (auto* group = dynamic_cast<ShardGroup*>(&entry.parameter->sink())) group->reshard();
}

std::vector<Piece> own_pieces(const std::vector<StateEntry>& state, int rank) {
  const auto staging = std::make_shared<Tensor>();
  std::vector<Piece> pieces;
  for (const StateEntry& entry : state) {
    const Tensor& value = entry.slot->value();
    if (entry.usually && value.storage() == entry.usually->value().storage()) continue;
    if (!saves_box(value, rank)) continue;
    const Box box = local_box(value);
    if (numel(box) == 0 && value.numel() > 0) continue;  // a whole without elements is saved all the same
    pieces.push_back(
        {entry.name, entry.kind, value.dtype(), value.shape(), box, saved_bytes(value.local().detach(), staging)});
  }
  return pieces;
}

}  // namespace

std::vector<StateEntry> training_state(Module& model, Optimizer* optimizer) {
  for (ShardGroup* group : shard_groups(model)) group->reshard();
  std::vector<StateEntry> state;
  for (const auto& [name, p] : model.named_parameters()) state.push_back({name, "param", p, p});
  for (const auto& [name, b] : model.named_buffers()) state.push_back({name, "buffer", b});
  if (!optimizer) return state;
  for (const OptimizerState& s : optimizer->state()) state.push_back({s.parameter, "optim." + s.kind, s.slot});
  state.push_back({"step", "optim", &optimizer->step_slot()});
  for (const OptimizerState& s : optimizer->counts())
    state.push_back({s.parameter, "optim." + s.kind, s.slot, nullptr, &optimizer->step_slot()});
  return state;
}

void save_checkpoint(const std::string& dir, Manifest manifest, const std::vector<StateEntry>& state,
                     ProcessGroup& group) {
  const GradMode off(false);
  reshard(state);
  std::string save;
  together(group, [&] {
    if (group.rank() == 0) save = save_name(dir, manifest.step);
  });
  save = gather_text(group, save)[0];
  std::string entries;
  together(group, [&] {
    const std::vector<Piece> pieces = own_pieces(state, group.rank());
    entries = pieces_to_json(write_rank_file(dir, save, group.rank(), pieces));
  });
  const std::vector<std::string> all = gather_text(group, entries);
  together(group, [&] {
    if (group.rank() != 0) return;
    manifest.save = save;
    manifest.world_size = group.size();
    manifest.pieces.clear();
    for (const std::string& text : all)
      for (PieceEntry& piece : pieces_from_json(text)) manifest.pieces.push_back(std::move(piece));
    commit(dir, manifest);
  });
}

namespace {
// Scalars that slots share while they are equal. Loading parts them and never joins them: a captured step notices the
// one, not the other.
class SharedScalars {
 public:
  explicit SharedScalars(const CheckpointReader& reader) : reader_(reader) {}
  void load(const StateEntry& entry) {
    const Tensor &now = entry.slot->value(), &usual = entry.usually->value();
    const bool is_usual = !reader_.contains(entry.kind, entry.name);
    if (is_usual && now.storage() == usual.storage()) return;
    float value = is_usual ? usual.item<float>() : 0;
    const auto bytes = std::as_writable_bytes(std::span(&value, 1));
    if (!is_usual) reader_.read_box(entry.kind, entry.name, DType::f32, {}, whole_box({}), bytes);
    Tensor& shared = parts_[{now.storage()->id(), std::bit_cast<std::uint32_t>(value)}];
    if (!shared.defined()) shared = to(Tensor::scalar(value), usual.device());
    entry.slot->set(shared);
  }

 private:
  const CheckpointReader& reader_;
  std::map<std::pair<std::uint64_t, std::uint32_t>, Tensor> parts_;  // by the bytes and the value that slots had
};
}  // namespace

void load_checkpoint(const CheckpointReader& reader, const std::vector<StateEntry>& state) {
  const GradMode off(false);
  reshard(state);
  SharedScalars scalars(reader);
  for (const StateEntry& entry : state) {
    if (entry.usually) {
      scalars.load(entry);
      continue;
    }
    const Tensor& value = entry.slot->value();
    const Box box = local_box(value);
    const Tensor local = value.local().detach();
    check(!local.is_meta(), "\"{}\" has no memory to load its values into; call model.materialize() first", entry.name);
    // A rank without elements reads none, but checks name, dtype and shape like the others.
    Tensor loaded = Tensor::empty(local.shape(), local.dtype());
    reader.read_box(entry.kind, entry.name, value.dtype(), value.shape(), box,
                    {static_cast<std::byte*>(loaded.raw()), static_cast<std::size_t>(loaded.bytes())});
    if (loaded.numel() > 0) copy_into(local, std::move(loaded));
    if (entry.parameter) entry.parameter->mark_initialised();
  }
}

}  // namespace sherd::nn
