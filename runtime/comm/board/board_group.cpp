// A group is divided so: all ranks show each other the lists they give, so all come to the same result; then the first
// rank of each list makes a board and the others take it. Subgroups use the poison, the bells and the heaps of the
// root, the group that all of them were divided from, directly or through others: a failure anywhere wakes all ranks,
// and peers read tensors in place as they do in the root.
//
//   root of ranks 0 1 2 3      poison, bells, heaps
//     {0,1}  {2,3}             a board each: cells, meetings, sequence numbers, windows
#include "runtime/comm/board/board_group.h"

#include <algorithm>
#include <cstring>

#include "runtime/comm/group/agree.h"
#include "runtime/comm/group/division.h"
#include "runtime/comm/store/hmac.h"
#include "runtime/exec/purpose.h"
#include "runtime/tensor/indices.h"

namespace sherd::comm {

namespace {
constexpr std::size_t kTagBytes = 32;
}  // namespace

BoardGroup::BoardGroup(std::string_view kind, const std::shared_ptr<std::byte>& memory, const BoardOptions& options,
                       std::string name)
    : BoardLane(*this, {options.rank, options.size, kind, std::move(name), kAllAbilities}, memory, options) {
  for (const int index : Numbers<int>(1, kNumLanes)) {
    BoardOptions of_lane = options;
    of_lane.lane = index;
    const GroupFacts facts{rank(), size(), kind, this->name(), abilities()};
    lanes_.push_back(std::make_unique<BoardLane>(*this, facts, memory, of_lane));
  }
}

HostGroup& BoardGroup::lane(int index) {
  check(index >= 0 && index < kNumLanes, "lane {} of a process group; give 0..{}", index, kNumLanes - 1);
  if (index == 0) return *this;
  return *lanes_[static_cast<std::size_t>(index) - 1];
}

std::vector<std::shared_ptr<BoardGroup>> BoardGroup::living_subgroups() const {
  std::lock_guard lock(subgroups_mutex_);
  std::vector<std::shared_ptr<BoardGroup>> living;
  for (const auto& group : subgroups_)
    if (auto alive = group.lock()) living.push_back(std::move(alive));
  return living;
}

std::shared_ptr<ProcessGroup> BoardGroup::subgroup(std::span<const int> ranks, std::string_view label) {
  const PurposeScope purpose("subgroup");
  const std::vector<std::string> texts = gather_text(*this, random_hex(kTagBytes / 2) + std::string(bytes_of(ranks)));
  std::vector<std::vector<int>> lists;
  for (const std::string& text : texts) lists.push_back(list_of(std::string_view(text).substr(kTagBytes)));
  check_lists(lists);

  const BoardOptions& own = board_.memory().options;
  BoardOptions options = own;
  options.size = static_cast<int>(ranks.size());
  options.rank = static_cast<int>(std::ranges::find(ranks, rank()) - ranks.begin());
  options.epoch = board_.epoch();
  auto place = std::make_shared<BoardOptions::Root>();
  place->memory = own.root ? own.root->memory : board_.memory().bytes;
  place->size = own.root ? own.root->size : own.size;
  for (const int r : ranks) place->ranks.push_back(board_.memory().root_rank(r));
  place->members = members_text(place->ranks);
  if (const auto& has_died = root().board_.memory().options.has_died)
    options.has_died = [has_died, place](int r) { return has_died(place->ranks[static_cast<std::size_t>(r)]); };
  options.root = place;

  std::shared_ptr<std::byte> memory;
  if (options.size == 1) {
    options.window_bytes = 0;
    memory = BoardMemory::on_heap(1, 0);
  }
  const std::string tag = texts[static_cast<std::size_t>(ranks[0])].substr(0, kTagBytes);
  const bool is_shared = options.size > 1, is_first = options.rank == 0;
  if (size() > 1) {
    const auto peers = std::span<const int>(place->ranks).subspan(1);
    together(*this, [&] {
      if (is_shared && is_first) memory = own.source->offer(tag, peers, options.size, options.window_bytes);
    });
    together(*this, [&] {
      if (is_shared && !is_first) memory = own.source->take(tag, options.size, options.window_bytes);
    });
  }

  Division division = division_.divide();
  auto group = std::make_shared<BoardGroup>(kind(), memory, options, division.name(label));
  group->root_ = std::static_pointer_cast<BoardGroup>(root().shared_from_this());
  group->division_ = std::move(division);
  group->set_deadline(board_.watch().deadline());
  if (link_) group->shape_link(link_->shape());
  BoardGroup& family = root();
  std::lock_guard lock(family.subgroups_mutex_);
  std::erase_if(family.subgroups_, [](const auto& g) { return g.expired(); });
  family.subgroups_.push_back(group);
  return group;
}

// A subgroup is reset with the group it was divided from: their poison is one.
void BoardGroup::reset() {
  if (root_) return root_->reset();
  const std::vector<std::shared_ptr<BoardGroup>> subgroups = living_subgroups();
  std::vector<Board*> others;
  const auto add_lanes = [&](BoardGroup& group) {
    for (const auto& lane : group.lanes_) others.push_back(&lane->board_);
  };
  add_lanes(*this);
  for (const auto& group : subgroups) {
    others.push_back(&group->board_);
    add_lanes(*group);
  }
  try {
    board_.reset(others);
  } catch (const CommError&) {
    board_.leave();
    throw;
  }
}

void BoardGroup::set_deadline(std::chrono::nanoseconds deadline) {
  BoardLane::set_deadline(deadline);
  for (const auto& lane : lanes_) lane->set_deadline(deadline);
  for (const auto& group : living_subgroups()) group->set_deadline(deadline);
}

CommCounts BoardGroup::counts() const {
  CommCounts counts = BoardLane::counts();
  for (const auto& lane : lanes_) counts += lane->counts();
  return counts;
}

Lateness BoardGroup::lateness() const {
  Lateness lateness = BoardLane::lateness();
  for (const auto& lane : lanes_) lateness += lane->lateness();
  return lateness;
}

}  // namespace sherd::comm
