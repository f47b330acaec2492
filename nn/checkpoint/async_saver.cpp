#include "nn/checkpoint/async_saver.h"

#include <chrono>
#include <utility>

#include "nn/checkpoint/manifest_json.h"
#include "nn/checkpoint/save_parts.h"
#include "runtime/autograd/autograd.h"
#include "runtime/comm/group/agree.h"
#include "runtime/comm/group/host_group.h"
#include "runtime/exec/context.h"
#include "runtime/exec/host_queue.h"
#include "runtime/op/ops.h"

namespace sherd::nn {

/// A save on its way. What the queue's work makes is read when its event is reached.
struct AsyncSaver::Flight {
  std::string dir, save;
  Manifest manifest;
  Retention retention;
  std::shared_ptr<Snapshot> snapshot;
  struct Outcome {
    std::string failure, file;
  };
  std::shared_ptr<Outcome> outcome = std::make_shared<Outcome>();
  Event event;  // of what was submitted last, on this rank
  bool is_committing = false;
};

namespace {

// What a step cannot change under the writer's hands is left where it is.
bool is_in_place(const Tensor& values) { return values.device() == Device::cpu() && values.is_contiguous(); }

std::vector<Tensor> in_place(const std::vector<OwnPiece>& own) {
  std::vector<Tensor> tensors;
  for (const OwnPiece& piece : own)
    if (is_in_place(piece.values)) tensors.push_back(piece.values);
  return tensors;
}

HostQueue& save_queue() { return static_cast<HostQueue&>(RankContext::current().queue(kSaveQueue)); }

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

bool all_of(ProcessGroup& group, bool own) {
  std::int64_t missing = own ? 0 : 1;
  const FlatPart part{&missing, DType::i64, 1};
  group.host().all_reduce({&part, 1}, {.kind = ReduceKind::max});
  return missing == 0;
}

}  // namespace

AsyncSaver::AsyncSaver(ProcessGroup& group) : group_(group) {}

AsyncSaver::~AsyncSaver() {
  if (!flight_) return;
  flight_->snapshot->cancel();
  flight_->event.settle();
}

void AsyncSaver::reserve(const std::vector<StateEntry>& state) {
  const std::int64_t bytes = Snapshot::kept_bytes(in_place(own_pieces(state, group_.rank())));
  if (kept_.defined() && kept_.bytes() >= bytes) return;
  kept_ = Tensor();
  try {
    kept_ = Tensor::empty({bytes}, DType::u8, Device::cpu(), MemoryCategory::communication);
  } catch (OutOfMemory& error) {
    error.add("for", fmt::format("{} for copies of what a step changes while it is being saved (save_async)",
                                 format_bytes(bytes)));
    throw;
  }
}

// Copies that are made here, from a device or of what is not dense, nobody else has: the snapshot need not keep them.
std::vector<Tensor> AsyncSaver::values_to_save(const std::vector<StateEntry>& state, std::vector<Piece>& pieces) const {
  std::vector<Tensor> values;
  for (OwnPiece& own : own_pieces(state, group_.rank())) {
    values.push_back(is_in_place(own.values) ? own.values : to(contiguous(own.values), Device::cpu()));
    pieces.push_back(std::move(own.piece));
  }
  return values;
}

void AsyncSaver::start(const std::string& dir, Manifest manifest, const std::vector<StateEntry>& state,
                       const Retention& retention) {
  check_has_values(dir);
  finish();
  const GradMode off(false);
  auto flight = std::make_unique<Flight>();
  flight->dir = dir;
  flight->save = agreed_save_name(dir, manifest.step, group_);
  flight->manifest = std::move(manifest);
  flight->retention = retention;
  auto pieces = std::make_shared<std::vector<Piece>>();
  std::vector<Tensor> values;
  std::int64_t bytes = 0;
  together(group_, [&] { values = values_to_save(state, *pieces); });
  reserve(state);
  for (const Tensor& value : values) bytes += value.bytes();
  flight->snapshot = std::make_shared<Snapshot>(std::move(values), kept_);
  Snapshot& snapshot = *flight->snapshot;
  for (std::size_t i = 0; i < pieces->size(); ++i)
    (*pieces)[i].bytes = PieceBytes::Give([&snapshot, i](const PieceBytes::Use& use) { snapshot.give(i, use); });
  const auto write = [shared = flight->snapshot, outcome = flight->outcome, pieces, dir, save = flight->save,
                      rank = group_.rank()] {
    try {
      outcome->file = rank_file_to_json(write_rank_file(dir, save, rank, *pieces));
    } catch (const std::exception& error) { outcome->failure = error.what(); }
    shared->end();
  };
  const std::vector<Loan> loans = snapshot.loans();
  flight->event =
      save_queue().submit({.name = "save", .subject = flight->save, .bytes = bytes, .run = write, .loans = loans},
                          [&snapshot](const Storage& storage) { snapshot.let_go(storage); });
  counts_.bytes += bytes;
  flight_ = std::move(flight);
}

// All ranks have written. Rank 0 writes the manifest, on its queue; the others have nothing to wait for.
void AsyncSaver::commit_together() {
  const std::vector<std::string> files = gather_text(group_, flight_->outcome->file);
  flight_->is_committing = true;
  flight_->outcome = std::make_shared<Flight::Outcome>();
  flight_->event = {};
  if (group_.rank() != 0) return;
  const auto commit = [outcome = flight_->outcome, files, dir = flight_->dir, save = flight_->save,
                       manifest = flight_->manifest, retention = flight_->retention] {
    try {
      commit_files(dir, save, manifest, files, retention);
    } catch (const std::exception& error) { outcome->failure = error.what(); }
  };
  flight_->event = save_queue().submit({.name = "commit", .subject = flight_->save, .run = commit});
}

void AsyncSaver::end() {
  counts_.cost.copied_bytes += flight_->snapshot->cost().copied_bytes;
  counts_.cost.seconds += flight_->snapshot->cost().seconds;
  flight_.reset();
}

void AsyncSaver::poll() {
  if (!flight_ || !all_of(group_, flight_->event.is_reached())) return;
  flight_->event.settle();  // it is over: lets go of what it holds
  try {
    together(group_, [&] {
      if (!flight_->outcome->failure.empty()) throw Error(flight_->outcome->failure);
    });
  } catch (const CommError&) { throw; } catch (Error& error) {
    const std::string text =
        fmt::format("the save \"{}\" has failed, those before it stay: {}", flight_->save, error.message());
    end();
    throw Error(text);
  }
  if (!flight_->is_committing) return commit_together();
  ++counts_.saves;
  end();
}

void AsyncSaver::finish() {
  const auto start = std::chrono::steady_clock::now();
  while (flight_) {
    flight_->event.settle();
    poll();
  }
  counts_.waited_seconds += seconds_since(start);
}

AsyncSaver::Counts AsyncSaver::counts() const {
  Counts counts = counts_;
  if (flight_) {
    counts.cost.copied_bytes += flight_->snapshot->cost().copied_bytes;
    counts.cost.seconds += flight_->snapshot->cost().seconds;
  }
  return counts;
}

}  // namespace sherd::nn
