#include "runtime/exec/timeline.h"

#include "runtime/tensor/fnv1a.h"
#include "runtime/tensor/indices.h"

namespace sherd {

namespace {

/// What is hashed of a timeline, as one text after another.
class Hash {
 public:
  void add(std::string_view text) { hash_ = fnv1a("\n", fnv1a(text, hash_)); }
  void add(std::uint64_t number) {
    for (int i = 0; i < 8; ++i) hash_ = (hash_ ^ (number >> (8 * i) & 0xff)) * 0x100000001b3u;
  }
  std::uint64_t value() const { return hash_; }

 private:
  std::uint64_t hash_ = kFnvStart;
};

}  // namespace

std::string_view name(TimelineRows::Why why) { return why == Timeline::Why::touch ? "touch" : "throttle"; }

Timeline::Timeline(const Timeline& other) { *this = other; }

// The index of texts points into them.
Timeline& Timeline::operator=(const Timeline& other) {
  if (this == &other) return *this;
  static_cast<TimelineRows&>(*this) = other;
  texts_ = other.texts_;
  by_text_.clear();
  for (const std::size_t i : indices(texts_)) by_text_.emplace(texts_[i], static_cast<Text>(i));
  return *this;
}

Timeline::Text Timeline::intern(std::string_view text) {
  if (const auto known = by_text_.find(text); known != by_text_.end()) return known->second;
  const auto index = static_cast<Text>(texts_.size());
  by_text_.emplace(texts_.emplace_back(text), index);
  return index;
}

double Timeline::flops() const {
  double flops = 0;
  for (const Entry& entry : entries)
    if (entry.kind == Kind::call) flops += calls[entry.index].work.flops;
  return flops;
}

std::uint64_t Timeline::hash() const {
  Hash hash;
  for (const Entry& entry : entries) {
    if (entry.kind == Kind::memory) continue;
    hash.add(static_cast<std::uint64_t>(entry.kind) << 8 | static_cast<std::uint64_t>(entry.phase));
    hash.add(text(entry.module));
    if (entry.kind == Kind::call) {
      const Call& call = calls[entry.index];
      hash.add(text(call.op));
      hash.add(static_cast<std::uint64_t>(call.work.kind) << 8 | static_cast<std::uint64_t>(call.work.dtype));
    } else if (entry.kind == Kind::wait) {
      const Wait& wait = waits[entry.index];
      hash.add(std::uint64_t{wait.item} << 8 | static_cast<std::uint64_t>(wait.why));
    } else {
      const Item& item = items[entry.index];
      for (const Text t : {item.queue, item.work, item.subject}) hash.add(text(t));
      if (item.group != kNone) hash.add(text(groups[item.group].name));
      hash.add(static_cast<std::uint64_t>(item.movement));
      for (const std::uint32_t before : item.after) hash.add(before);
    }
  }
  return hash.value();
}

bool Timeline::plays_as(const Timeline& other) const {
  Timeline same = other;
  same.rank = rank;
  return print() == same.print();
}

}  // namespace sherd
