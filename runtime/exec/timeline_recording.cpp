#include "runtime/exec/timeline_recording.h"

#include "runtime/exec/queue_item.h"
#include "runtime/tensor/error.h"

namespace sherd {

TimelineRecording::TimelineRecording(Timeline& timeline, const Site& site)
    : timeline_(timeline),
      world_(site.world),
      context_(RankContext::current()),
      allocator_(context_.allocator(site.device)),
      outer_(allocator_.watcher()) {
  check(context_.is_ghost(), "a rank that computes writes no timeline: open RankScope(text, {{.ghost = true}})");
  check(context_.timeline == nullptr, "a timeline of this rank is being written already");
  timeline_ = {};
  timeline_.rank = site.rank;
  timeline_.ranks = site.ranks;
  timeline_.base = allocator_.accounting().current();
  allocator_.set_watcher(this);
  context_.timeline = this;
}

TimelineRecording::~TimelineRecording() {
  context_.timeline = nullptr;
  allocator_.set_watcher(outer_);
}

void TimelineRecording::add(Timeline::Kind kind, std::size_t index) {
  Timeline::Text module = 0;
  if (const std::string* const path = context_.module_path) {
    Timeline::Text& known = modules_[path];
    if (known == 0) known = timeline_.intern(*path);
    module = known;
  }
  timeline_.entries.push_back({kind, context_.phase, module, static_cast<std::uint32_t>(index)});
}

void TimelineRecording::add_call(std::string_view op, Timeline::Text shapes, const CallWork& work) {
  add(Timeline::Kind::call, timeline_.calls.size());
  timeline_.calls.push_back({timeline_.intern(op), shapes, work});
}

std::uint32_t TimelineRecording::group_of(const WireUse& wire) {
  for (std::size_t i = 0; i < timeline_.groups.size(); ++i)
    if (timeline_.text(timeline_.groups[i].name) == wire.group) return static_cast<std::uint32_t>(i);
  check(wire.grid != nullptr, "the ranks of the group {} are no grid of the job's, so that nothing prices it",
        wire.group);
  const std::string_view label = wire.group == "world" ? world_ : wire.group.substr(0, wire.group.find('#'));
  timeline_.groups.push_back({timeline_.intern(wire.group), timeline_.intern(label), *wire.grid});
  return static_cast<std::uint32_t>(timeline_.groups.size() - 1);
}

// Items of before the recording are over, as far as it goes.
std::uint32_t TimelineRecording::item_of(const Queue& queue, std::uint64_t sequence) const {
  const auto at = static_cast<std::size_t>(queue.index());
  if (at >= queues_.size() || sequence < queues_[at].first) return Timeline::kNone;
  return queues_[at].items[sequence - queues_[at].first];
}

void TimelineRecording::submitted(const Queue& queue, const QueueItem& item, const QueueWork& work) {
  Timeline::Item row{.queue = timeline_.intern(queue.name()),
                     .work = timeline_.intern(work.name),
                     .subject = timeline_.intern(work.subject),
                     .bytes = static_cast<double>(work.bytes)};
  if (work.wire) {
    row.group = group_of(*work.wire);
    row.movement = work.wire->movement;
  }
  for (const auto& [event, wrote] : item.after)
    if (const std::uint32_t before = item_of(*event.queue(), event.sequence()); before != Timeline::kNone)
      row.after.push_back(before);
  for (const Loan& loan : work.loans) {
    const auto number = static_cast<std::uint32_t>(storages_.size());
    row.uses.push_back({storages_.try_emplace(loan.storage->id(), number).first->second, loan.writes});
  }
  const auto at = static_cast<std::size_t>(queue.index());
  if (at >= queues_.size()) queues_.resize(at + 1);
  if (queues_[at].items.empty()) queues_[at].first = item.sequence;
  queues_[at].items.push_back(static_cast<std::uint32_t>(timeline_.items.size()));
  add(Timeline::Kind::item, timeline_.items.size());
  timeline_.items.push_back(std::move(row));
}

void TimelineRecording::waited(const Queue& queue, std::uint64_t sequence, Timeline::Why why) {
  const std::uint32_t item = item_of(queue, sequence);
  if (item == Timeline::kNone) return;
  std::uint64_t& over = queues_[static_cast<std::size_t>(queue.index())].over;
  if (sequence <= over) return;
  over = sequence;
  add(Timeline::Kind::wait, timeline_.waits.size());
  timeline_.waits.push_back({item, why});
}

// What grows, or falls, without anything between is one change.
void TimelineRecording::change(MemoryCategory category, std::int64_t bytes) {
  if (bytes == 0) return;
  if (!timeline_.entries.empty() && timeline_.entries.back().kind == Timeline::Kind::memory) {
    Timeline::Change& last = timeline_.changes.back();
    if (last.category == category && (last.bytes > 0) == (bytes > 0)) {
      last.bytes += bytes;
      return;
    }
  }
  add(Timeline::Kind::memory, timeline_.changes.size());
  timeline_.changes.push_back({category, bytes});
}

void TimelineRecording::taken(const void* block, std::int64_t bytes, MemoryCategory category) noexcept {
  change(category, bytes);
  if (outer_) outer_->taken(block, bytes, category);
}
void TimelineRecording::given_back(const void* block, std::int64_t bytes, MemoryCategory category) noexcept {
  change(category, -bytes);
  if (outer_) outer_->given_back(block, bytes, category);
}
// As the accounts do it: it leaves one before it is on the other.
void TimelineRecording::retagged(const void* block, std::int64_t bytes, MemoryCategory from,
                                 MemoryCategory to) noexcept {
  change(from, -bytes);
  change(to, bytes);
  if (outer_) outer_->retagged(block, bytes, from, to);
}
void TimelineRecording::is_of(const void* block, const StorageMemory& storage) noexcept {
  if (outer_) outer_->is_of(block, storage);
}
void TimelineRecording::refused(std::int64_t bytes, MemoryCategory category) noexcept {
  if (outer_) outer_->refused(bytes, category);
}

}  // namespace sherd
