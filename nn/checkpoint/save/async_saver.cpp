#include "nn/checkpoint/save/async_saver.h"

#include <chrono>
#include <filesystem>
#include <system_error>
#include <utility>

#include "nn/checkpoint/format/manifest_json.h"
#include "nn/checkpoint/format/saves.h"
#include "nn/checkpoint/save/save_parts.h"
#include "runtime/autograd/autograd.h"
#include "runtime/comm/group/agree.h"
#include "runtime/comm/group/host_group.h"
#include "runtime/exec/context.h"
#include "runtime/exec/host_queue.h"
#include "runtime/exec/purpose.h"
#include "runtime/op/rows/ops.h"
#include "runtime/tensor/indices.h"

namespace sherd::nn {

/// A save on its way. What the queue's work makes is read when its event is reached.
struct AsyncSaver::Flight {
  std::string dir, save;
  ckpt::Manifest manifest;
  ckpt::Retention retention;
  std::shared_ptr<ckpt::Snapshot> snapshot;
  struct Outcome {
    std::string failure, file;
    bool is_done = false;  // set last
  };
  std::shared_ptr<Outcome> outcome = std::make_shared<Outcome>();
  Event event;  // of what was submitted last, on this rank
  bool is_committing = false;
};

namespace {

// What a step cannot change under the writer's hands is left where it is.
bool is_in_place(const Tensor& values) { return values.device() == Device::cpu() && values.is_contiguous(); }

std::vector<ckpt::Snapshot::Value> in_place(const std::vector<ckpt::OwnPiece>& own) {
  std::vector<ckpt::Snapshot::Value> values;
  for (const ckpt::OwnPiece& piece : own)
    if (is_in_place(piece.values)) values.push_back({piece.values});
  return values;
}

HostQueue& save_queue() { return static_cast<HostQueue&>(RankContext::current().queue(kSaveQueue)); }

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

bool all_of(ProcessGroup& group, bool own) {
  std::int64_t missing = own ? 0 : 1;
  group.host().all_reduce({in_place(&missing, DType::i64, 1)}, {.kind = ReduceKind::max});
  return missing == 0;
}

}  // namespace

AsyncSaver::AsyncSaver(ProcessGroup& group) : group_(group) {}

AsyncSaver::~AsyncSaver() { give_up(); }

void AsyncSaver::reserve(const std::vector<StateEntry>& state) {
  const std::int64_t bytes = ckpt::Snapshot::kept_bytes(in_place(ckpt::own_pieces(state, group_.rank())));
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
std::vector<ckpt::Snapshot::Value> AsyncSaver::values_to_save(const std::vector<StateEntry>& state,
                                                              std::vector<ckpt::Piece>& pieces) const {
  std::vector<ckpt::Snapshot::Value> values;
  for (ckpt::OwnPiece& own : ckpt::own_pieces(state, group_.rank())) {
    if (is_in_place(own.values)) values.push_back({own.values});
    else values.push_back({to(contiguous(own.values), Device::cpu()), true});
    pieces.push_back(std::move(own.piece));
  }
  return values;
}

// Local, and may fail on one rank alone.
void AsyncSaver::submit(Flight& flight, const std::vector<StateEntry>& state) {
  auto pieces = std::make_shared<std::vector<ckpt::Piece>>();
  std::vector<ckpt::Snapshot::Value> values = values_to_save(state, *pieces);
  reserve(state);
  std::int64_t bytes = 0;
  for (const ckpt::Snapshot::Value& value : values) bytes += value.tensor.bytes();
  flight.snapshot = std::make_shared<ckpt::Snapshot>(std::move(values), kept_);
  ckpt::Snapshot& snapshot = *flight.snapshot;
  for (const std::size_t i : indices(*pieces))
    (*pieces)[i].bytes =
        ckpt::PieceBytes::Give([&snapshot, i](const ckpt::PieceBytes::Use& use) { snapshot.give(i, use); });
  const auto write = [shared = flight.snapshot, outcome = flight.outcome, pieces, dir = flight.dir, save = flight.save,
                      rank = group_.rank()] {
    try {
      outcome->file = ckpt::rank_file_to_json(ckpt::write_rank_file(dir, save, rank, *pieces));
    } catch (const std::exception& error) { outcome->failure = error.what(); }
    shared->end();
    outcome->is_done = true;
  };
  const std::vector<Loan> loans = snapshot.loans();
  // Its subject is the folder of all saves: times are kept by it (work_times.h), and a save's name never comes again.
  flight.event =
      save_queue().submit({.name = "save", .subject = flight.dir, .bytes = bytes, .run = write, .loans = loans},
                          [&snapshot](const Storage& storage) { return snapshot.let_go(storage); });
  counts_.bytes += bytes;
}

void AsyncSaver::start(const std::string& dir, ckpt::Manifest manifest, const std::vector<StateEntry>& state,
                       const ckpt::Retention& retention) {
  const PurposeScope purpose("AsyncSaver::start");
  ckpt::check_has_values(dir);
  finish();
  const GradMode off(false);
  auto flight = std::make_unique<Flight>();
  flight->dir = dir;
  flight->save = ckpt::agreed_save_name(dir, manifest.step, group_);
  flight->manifest = std::move(manifest);
  flight->retention = retention;
  flight_ = std::move(flight);
  try {
    together(group_, [&] { submit(*flight_, state); });
  } catch (const CommError&) {
    give_up();
    throw;
  } catch (...) {
    give_up_together();
    throw;
  }
}

// The file stays: another rank, which has not seen what ended the flight here, may commit it.
void AsyncSaver::give_up() noexcept {
  if (!flight_) return;
  if (flight_->snapshot) flight_->snapshot->cancel();
  flight_->event.settle();
  end();
}

// All ranks know that it has failed. With a disk that is full its files would be in the way of the next one.
void AsyncSaver::give_up_together() noexcept {
  const auto file = std::filesystem::path(flight_->dir) / flight_->save / ckpt::rank_file_name(group_.rank());
  give_up();
  std::error_code ignored;
  std::filesystem::remove(file, ignored);
}

// All ranks have written. Rank 0 writes the manifest, on its queue; the others have nothing to wait for.
void AsyncSaver::commit_together() {
  const std::vector<std::string> files = gather_text(group_, flight_->outcome->file);
  flight_->is_committing = true;
  flight_->outcome = std::make_shared<Flight::Outcome>();
  flight_->event = {};
  flight_->outcome->is_done = group_.rank() != 0;
  if (group_.rank() != 0) return;
  const auto commit = [outcome = flight_->outcome, files, dir = flight_->dir, save = flight_->save,
                       manifest = flight_->manifest, retention = flight_->retention] {
    try {
      ckpt::commit_files(dir, save, manifest, files, retention);
    } catch (const std::exception& error) { outcome->failure = error.what(); }
    outcome->is_done = true;
  };
  flight_->event = save_queue().submit({.name = "commit", .subject = flight_->dir, .run = commit});
}

/// Whether the run can go on from an earlier save, as rank 0 sees the folder. Collective.
bool AsyncSaver::has_saves_to_keep() {
  bool has_saves = false;
  try {
    has_saves = !flight_->retention.replace && !ckpt::list_saves(flight_->dir).empty();
  } catch (const Error&) {}  // it cannot be read now: nobody knows
  return gather_text(group_, has_saves ? "yes" : "")[0] == "yes";
}

// What the save in flight has copied.
void AsyncSaver::count_copies(Counts& counts) const {
  if (!flight_ || !flight_->snapshot) return;
  counts.copied_bytes += flight_->snapshot->cost().copied_bytes;
  counts.copy_seconds += flight_->snapshot->cost().seconds;
}

void AsyncSaver::end() noexcept {
  count_copies(counts_);
  flight_.reset();
}

void AsyncSaver::check_outcome() {
  flight_->event.wait();  // it is over: lets go of what it holds, and throws if it was skipped
  const Flight::Outcome& outcome = *flight_->outcome;
  if (!outcome.failure.empty()) throw Error(outcome.failure);
  check(outcome.is_done, "its work did not run");
}

void AsyncSaver::poll() {
  const PurposeScope purpose("AsyncSaver::poll");
  if (!flight_) return;
  try {
    if (!all_of(group_, flight_->event.is_reached())) return;
    together(group_, [&] { check_outcome(); });
    if (!flight_->is_committing) return commit_together();
  } catch (const CommError&) {  // ranks may have seen different ends of it
    give_up();
    throw;
  } catch (const Error& error) {
    const bool has_earlier = has_saves_to_keep();
    const std::string text = fmt::format(
        "the save \"{}\" has failed, {}: {}; when that is mended, {}", flight_->save,
        has_earlier ? "those before it stay" : "and there is none before it", error.message(),
        has_earlier ? fmt::format("go on by --resume {}", flight_->dir) : std::string("begin the run again"));
    give_up_together();
    throw Error(text);
  }
  ++counts_.saves;
  end();
}

void AsyncSaver::finish() {
  const PurposeScope purpose("AsyncSaver::finish");
  const auto start = std::chrono::steady_clock::now();
  while (flight_) {
    flight_->event.outlast();
    poll();
  }
  counts_.waited_seconds += seconds_since(start);
}

AsyncSaver::Counts AsyncSaver::counts() const {
  Counts counts = counts_;
  count_copies(counts);
  return counts;
}

}  // namespace sherd::nn
