#include "nn/checkpoint/training_state.h"

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "nn/checkpoint/format/manifest_json.h"
#include "nn/checkpoint/save/save_parts.h"
#include "runtime/autograd/autograd.h"
#include "runtime/comm/group/agree.h"
#include "runtime/exec/purpose.h"
#include "runtime/op/copy/offload.h"
#include "runtime/op/rows/ops.h"

namespace sherd::nn {

namespace {

std::span<const std::byte> bytes_of(const Tensor& local) {
  return {static_cast<const std::byte*>(local.raw()), static_cast<std::size_t>(local.bytes())};
}

// Tensors that must be copied first, from a device or because they are not dense, are one after the other. Of a home
// outside of memory all that was looked at would stay there: it is left as soon as its bytes are written.
ckpt::PieceBytes saved_bytes(const Tensor& local) {
  if (home_of(local) && local.is_contiguous())
    return ckpt::PieceBytes::Give([local](const ckpt::PieceBytes::Use& use) {
      use(bytes_of(local));
      leave_memory(local);
    });
  if (local.device() == Device::cpu() && local.is_contiguous()) return bytes_of(local);
  return ckpt::PieceBytes::Give(
      [local](const ckpt::PieceBytes::Use& use) { use(bytes_of(to(contiguous(local), Device::cpu()))); });
}

}  // namespace

const Tensor& state_tensor(const StateEntry& entry) {
  return entry.parameter ? entry.parameter->sharded_value() : entry.slot->value();
}

const Shape& state_shape(const StateEntry& entry) {
  const Tensor& value = state_tensor(entry);
  return entry.like && entry.like->numel() == value.numel() ? entry.like->shape() : value.shape();
}

void require_exactly(const ckpt::CheckpointReader& save, const std::vector<StateEntry>& state) {
  std::set<std::pair<std::string, std::string>> wanted;
  for (const StateEntry& entry : state)
    if (!entry.usually || save.contains(entry.kind, entry.name)) wanted.emplace(entry.kind, entry.name);
  save.require_exactly(wanted);
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
    for (const auto& [name, slot] : scaler->state()) state.push_back({name, "loss_scaler", slot});
  if (!optimizer) return state;
  for (const OptimizerState& s : optimizer->state())
    state.push_back({s.parameter, "optim." + s.kind, s.slot, nullptr, s.like});
  state.push_back({"step", "optim", &optimizer->step_slot()});
  for (const OptimizerState& s : optimizer->counts())
    state.push_back({s.parameter, "optim." + s.kind, s.slot, nullptr, nullptr, &optimizer->step_slot()});
  return state;
}

void save_checkpoint(const std::string& dir, ckpt::Manifest manifest, const std::vector<StateEntry>& state,
                     ProcessGroup& group, const ckpt::Retention& retention) {
  const PurposeScope purpose("save_checkpoint");
  ckpt::check_has_values(dir);
  const GradMode off(false);
  const std::string save = ckpt::agreed_save_name(dir, manifest.step, group);
  std::string file;
  together(group, [&] {
    std::vector<ckpt::Piece> pieces;
    for (ckpt::OwnPiece& own : ckpt::own_pieces(state, group.rank())) {
      own.piece.bytes = saved_bytes(own.values);
      pieces.push_back(std::move(own.piece));
    }
    file = ckpt::rank_file_to_json(ckpt::write_rank_file(dir, save, group.rank(), pieces));
  });
  const std::vector<std::string> files = gather_text(group, file);
  together(group, [&] {
    if (group.rank() == 0) ckpt::commit_files(dir, save, std::move(manifest), files, retention);
  });
}

}  // namespace sherd::nn
