// The log is a list of changes and the state before the first of them. A moment is a number of changes: to look at it
// is to apply them in order. When the list is full it is applied once and dropped, after the moments that are wanted
// have been looked at.
#include "runtime/exec/memory_log.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "runtime/memory/storage.h"
#include "runtime/tensor/error.h"
#include "runtime/tensor/indices.h"

namespace sherd {

namespace {

std::int64_t& at(CategoryBytes& bytes, MemoryCategory category) { return bytes[static_cast<std::size_t>(category)]; }

}  // namespace

std::string describe(const MemoryLog::Moment& moment) {
  std::string text;
  if (!moment.op.empty()) text += fmt::format("op {}, ", moment.op);
  if (!moment.module.empty()) text += fmt::format("module {}, ", moment.module);
  text += name(moment.phase);
  if (moment.step >= 0) text += fmt::format(", step {}", moment.step + 1);
  return text;
}

MemoryLog::MemoryLog(Allocator& allocator, Namer namer)
    : allocator_(allocator), context_(RankContext::current()), namer_(std::move(namer)), phase_(context_.phase) {
  check(allocator.watcher() == nullptr && context_.memory_log == nullptr, "a rank has one memory log at a time");
  before_.bytes = allocator.accounting().current();
  activations_ = allocator.accounting().current(MemoryCategory::activations);
  changes_.reserve(kMostChanges);
  allocator.set_watcher(this);
  context_.memory_log = this;
  mark(peak_, allocator.accounting().total());
}

MemoryLog::~MemoryLog() {
  allocator_.set_watcher(nullptr);
  context_.memory_log = nullptr;
}

MemoryLog::Place MemoryLog::here() const { return {context_.module_path, op_, context_.step, context_.phase}; }

void MemoryLog::State::apply(const Change& change) {
  switch (change.kind) {
    case Kind::taken:
      at(bytes, change.category) += change.bytes;
      blocks[change.block] = change;
      break;
    case Kind::given_back:
      at(bytes, change.category) -= change.bytes;
      blocks.erase(change.block);
      break;
    case Kind::retagged:
      at(bytes, change.category) -= change.bytes;
      at(bytes, change.to) += change.bytes;
      if (const auto found = blocks.find(change.block); found != blocks.end()) found->second.category = change.to;
      break;
    case Kind::charged: at(bytes, change.category) += change.bytes; break;
  }
}

MemoryLog::State MemoryLog::state_at(std::size_t position) const {
  State state = before_;
  for (const std::size_t i : up_to(position)) state.apply(changes_[i]);
  return state;
}

void MemoryLog::fold() {
  for (Mark* mark : {&peak_, &saved_})
    if (!mark->is_kept) {
      mark->kept = state_at(mark->position);
      mark->is_kept = true;
    }
  for (const Change& change : changes_) before_.apply(change);
  changes_.clear();
}

// `activations_` is of the changes that are written: the accounts are one ahead.
void MemoryLog::push(Change change) {
  if (changes_.size() == kMostChanges) fold();
  changes_.push_back(std::move(change));
  activations_ = allocator_.accounting().current(MemoryCategory::activations);
}

void MemoryLog::mark(Mark& mark, std::int64_t score) {
  if (score <= mark.score) return;
  mark.score = score;
  mark.position = changes_.size();
  mark.is_kept = false;
  mark.place = here();
  mark.kept = {};
}

// A backward begins where the first change of its phase is about to be written.
void MemoryLog::note_phase() {
  const StepPhase phase = context_.phase;
  if (std::exchange(phase_, phase) == StepPhase::forward && phase == StepPhase::backward) mark(saved_, activations_);
}

void MemoryLog::taken(const void* block, std::int64_t bytes, MemoryCategory category) noexcept {
  note_phase();
  push({.block = block,
        .bytes = bytes,
        .place = here(),
        .kind = block ? Kind::taken : Kind::charged,
        .category = category});
  mark(peak_, allocator_.accounting().total());
}

void MemoryLog::given_back(const void* block, std::int64_t bytes, MemoryCategory category) noexcept {
  note_phase();
  push({.block = block, .bytes = bytes, .kind = Kind::given_back, .category = category});
}

void MemoryLog::retagged(const void* block, std::int64_t bytes, MemoryCategory from, MemoryCategory to) noexcept {
  note_phase();
  push({.block = block, .bytes = bytes, .kind = Kind::retagged, .category = from, .to = to});
}

// Names a storage with an owner at once, since such storages come and go; other names are asked for with a picture.
void MemoryLog::is_of(const void* block, const StorageMemory& storage) noexcept {
  if (changes_.empty() || changes_.back().block != block) return;
  changes_.back().storage = storage.id();
  if (storage.owner && context_.storage_name) changes_.back().name = context_.intern(context_.storage_name(storage));
}

void MemoryLog::refused(std::int64_t bytes, MemoryCategory category) noexcept {
  refusal_ = Refusal{bytes, category, picture_of(state_at(changes_.size()), here())};
}

MemoryLog::Picture MemoryLog::picture_of(const Mark& mark) const {
  if (mark.score == std::numeric_limits<std::int64_t>::min()) return {};
  return picture_of(mark.is_kept ? mark.kept : state_at(mark.position), mark.place);
}

MemoryLog::Picture MemoryLog::picture_of(const State& state, const Place& place) const {
  const auto moment_of = [](const Place& p) {
    return Moment{p.module ? *p.module : std::string(), std::string(p.op), p.phase, p.step};
  };
  Picture picture{.moment = moment_of(place), .bytes = state.bytes};
  picture.total = std::accumulate(state.bytes.begin(), state.bytes.end(), std::int64_t{0});
  for (const auto& [block, change] : state.blocks)
    picture.blocks.push_back({.bytes = change.bytes,
                              .category = change.category,
                              .name = change.name ? *change.name : std::string(),
                              .made = moment_of(change.place),
                              .storage = change.storage});
  std::ranges::sort(picture.blocks, [](const Block& a, const Block& b) {
    return a.bytes != b.bytes ? a.bytes > b.bytes : a.storage < b.storage;
  });
  if (namer_) namer_(picture);
  return picture;
}

}  // namespace sherd
