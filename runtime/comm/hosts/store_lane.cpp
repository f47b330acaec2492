// How calls meet in the store. Each rank sets one message for a call, for all peers, or one for each of them; it says
// what call the rank is in, so that ranks that differ find it before any tensor is touched. Messages are cut into
// pieces that the store takes.
#include "runtime/comm/hosts/store_lane.h"

#include <algorithm>
#include <cstring>
#include <thread>

#include "runtime/comm/group/agree.h"
#include "runtime/comm/group/call_difference.h"
#include "runtime/comm/group/part_checks.h"
#include "runtime/comm/hosts/store_bytes.h"
#include "runtime/exec/purpose.h"
#include "runtime/tensor/error.h"
#include "runtime/tensor/indices.h"

namespace sherd::comm {

namespace {

constexpr std::size_t kPiece = std::size_t{1} << 20;  // the most that a value of the store has

struct Header {
  std::uint64_t hash = 0, call_bytes = 0, bytes = 0;
};

double seconds_in(std::chrono::nanoseconds time) { return std::chrono::duration<double>(time).count(); }

}  // namespace

StoreLane::StoreLane(StoreGroup& group, GroupFacts facts, int lane)
    : HostGroup(std::move(facts)), group_(group), lane_(lane) {}

HostGroup& StoreLane::lane(std::string_view queue) { return group_.lane(queue); }
HostGroup& StoreLane::lane(int index) { return group_.lane(index); }
void StoreLane::shape_link(const LinkShape& shape) { group_.shape_link(shape); }

std::shared_ptr<ProcessGroup> StoreLane::subgroup(std::span<const int>, std::string_view) {
  fail("subgroup() of lane {}: call it on lane 0, which is the group", lane_);
}

void StoreLane::reset() { fail("reset() of lane {}: only the whole group can be reset; call it on lane 0", lane_); }

void StoreLane::abort(std::string_view reason) {
  StoreFamily& family = group_.family();
  family.poison(fmt::format("rank {} aborted the group: {}", family.rank(), reason));
}

CommCounts StoreLane::counts() const {
  const std::lock_guard lock(counts_mutex_);
  return counts_;
}

// What was set before a reset is under another prefix.
void StoreLane::begin_epoch() {
  if (const std::int64_t epoch = group_.family().epoch(); std::exchange(epoch_, epoch) == epoch) return;
  sequence_ = 0;
  pairs_.clear();
  before_.clear();
  now_.clear();
}

Fingerprint StoreLane::opened(const Collective& call) {
  const int peer = call.peer;
  if (call.op == CommOp::send || call.op == CommOp::recv) {
    check(peer >= 0 && peer < size() && peer != rank(), "the peer is rank {}; give another rank of the {} in the group",
          peer, size());
    const auto way = call.op == CommOp::send ? std::pair(rank(), peer) : std::pair(peer, rank());
    Fingerprint of_pair =
        Fingerprint::of_pair(call.op, ++pairs_[way], lane_, group_.family_rank(peer), group_.members());
    describe(call, of_pair);
    return of_pair;
  }
  Fingerprint opened(call.op, ++sequence_, lane_, group_.members());
  describe(call, opened);
  return opened;
}

void StoreLane::run(const Collective& call) { enter(call, /*moves=*/true); }

void StoreLane::meet(const Collective& call) { enter(call, /*moves=*/false); }

std::string StoreLane::failure() { return group_.family().failure(); }

void StoreLane::enter(const Collective& call, bool moves) {
  const auto start = Clock::now();
  StoreFamily& family = group_.family();
  family.check_usable();
  begin_epoch();
  Fingerprint fingerprint;
  try {
    if (moves) check_parts(call, rank(), size());
    fingerprint = opened(call);
  } catch (const Error& error) {  // peers may be on their way into the call
    const std::string text = fmt::format("{}: {}", comm::name(call.op), error.message());
    family.poison(fmt::format("rank {} made a call that is wrong: {}", family.rank(), text));
    throw Error(text);
  }
  try {
    move(moves ? call : Collective{.op = call.op, .peer = call.peer}, fingerprint);
  } catch (const CommError& error) {
    family.poison(error.message());
    family.check_usable();  // throws the first reason that any rank has given
  } catch (const std::exception& error) {
    family.poison(fmt::format("rank {} failed in {}: {}", family.rank(), fingerprint.text(), error.what()));
    throw;
  }
  count(call, start, moves);
}

void StoreLane::count(const Collective& call, Clock::time_point start, bool moves) {
  if (Link* const link = group_.link()) std::this_thread::sleep_until(link->pass(Clock::now(), call.op, call.bytes()));
  const std::lock_guard lock(counts_mutex_);
  if (!is_agreeing()) {
    CommCounts::Item& item = counts_.of(call.op);
    item.calls += 1;
    item.bytes += call.bytes();
  }
  if (moves) counts_.seconds += seconds_in(Clock::now() - start);
}

void StoreLane::move(const Collective& call, const Fingerprint& fingerprint) {
  if (call.op == CommOp::send || call.op == CommOp::recv) return pass(call, fingerprint);
  // A meeting has no parts.
  const bool is_for_all = call.parts.empty() || (call.op != CommOp::reduce_scatter && call.op != CommOp::all_to_all);
  std::vector<std::string> sent(static_cast<std::size_t>(size())), received(sent.size());
  for (const int peer : up_to(size()))
    if (!is_for_all || peer == rank()) sent[static_cast<std::size_t>(peer)] = bytes_for(call, peer, rank());
  exchange(fingerprint, is_for_all, sent, received);
  received[static_cast<std::size_t>(rank())] = std::move(sent[static_cast<std::size_t>(rank())]);
  take_bytes(call, received, rank());
}

void StoreLane::exchange(const Fingerprint& call, bool is_for_all, const std::vector<std::string>& bytes,
                         std::vector<std::string>& received) {
  const auto start = Clock::now();
  const std::string prefix = fmt::format("{}{}/{}/{}", group_.family().prefix(), group_.path(), lane_, sequence_);
  const auto for_all = [&](int from) { return fmt::format("{}/{}", prefix, from); };
  const auto for_one = [&](int from, int to) { return fmt::format("{}/{}-{}", prefix, from, to); };
  before_ = std::exchange(now_, {});
  // What the call is, is said to all in the same place, whatever it is.
  if (size() > 1) post(for_all(rank()), call, is_for_all ? bytes[static_cast<std::size_t>(rank())] : std::string());
  std::vector<Message> messages(bytes.size());
  const auto receive_all = [&](const auto& key_from) {
    for (const int step : Numbers<int>(1, size())) {
      const int peer = (rank() + step) % size();
      messages[static_cast<std::size_t>(peer)] = receive(key_from(peer), peer, call, start);
    }
  };
  if (!is_for_all)
    for (const int peer : up_to(size()))
      if (peer != rank()) post(for_one(rank(), peer), call, bytes[static_cast<std::size_t>(peer)]);
  receive_all(for_all);
  compare(call, messages);
  if (!is_for_all) receive_all([&](int peer) { return for_one(peer, rank()); });
  // A rank that has given up may have set its part before.
  if (const std::string why = group_.family().failure({}); !why.empty()) throw CommError(why);
  Store& store = group_.family().lane(lane_);
  for (const std::string& key : before_) store.erase(key);  // all have come to this call, and are through with that one
  for (const std::size_t r : indices(messages)) received[r] = std::move(messages[r].bytes);
}

/// A send ends when its peer has read it.
void StoreLane::pass(const Collective& call, const Fingerprint& fingerprint) {
  const auto start = Clock::now();
  const bool sends = call.op == CommOp::send;
  const int from = sends ? rank() : call.peer, to = sends ? call.peer : rank();
  const std::string key =
      fmt::format("{}{}/{}/{}-{}/{}", group_.family().prefix(), group_.path(), lane_, from, to, pairs_.at({from, to}));
  Store& store = group_.family().lane(lane_);
  if (sends) {
    std::vector<std::string> collective = std::exchange(now_, {});
    post(key, fingerprint, flat_bytes(call));
    await(key + "/read", call.peer, fingerprint, start);
    for (const std::string& piece : now_) store.erase(piece);
    store.erase(key + "/read");
    now_ = std::move(collective);
    return;
  }
  std::vector<Message> messages(static_cast<std::size_t>(size()));
  Message& message = messages[static_cast<std::size_t>(from)];
  message = receive(key, from, fingerprint, start);
  compare(fingerprint, messages);
  take_flat(call, message.bytes);
  store.set(key + "/read", "1");
}

void StoreLane::post(const std::string& key, const Fingerprint& call, std::string_view bytes) {
  const Header header{call.hash(), call.text().size(), bytes.size()};
  std::string all(reinterpret_cast<const char*>(&header), sizeof header);
  all.append(call.text()).append(bytes);
  Store& store = group_.family().lane(lane_);
  for (std::size_t at = 0, piece = 0; at < all.size(); at += kPiece, ++piece) {
    now_.push_back(fmt::format("{}/{}", key, piece));
    store.set(now_.back(), std::string_view(all).substr(at, kPiece));
  }
}

StoreLane::Message StoreLane::receive(const std::string& key, int peer, const Fingerprint& call,
                                      Clock::time_point start) {
  std::string all = await(key + "/0", peer, call, start);
  Header header;
  check(all.size() >= sizeof header, "rank {} has set a message of {} bytes", peer, all.size());
  std::memcpy(&header, all.data(), sizeof header);
  const std::size_t size = sizeof header + header.call_bytes + header.bytes;
  for (int piece = 1; all.size() < size; ++piece) all += await(fmt::format("{}/{}", key, piece), peer, call, start);
  return {header.hash, all.substr(sizeof header, header.call_bytes), all.substr(sizeof header + header.call_bytes)};
}

std::string StoreLane::await(const std::string& key, int peer, const Fingerprint& call, Clock::time_point start) {
  StoreFamily& family = group_.family();
  Store& store = family.lane(lane_);
  const std::chrono::nanoseconds deadline = deadline_.load();
  const WaitNotice& notice = family.notice();
  NoticeClock clock(start, notice.after);
  const int awaited = group_.family_rank(peer);
  for (;;) {
    const auto left = std::max(start + deadline - Clock::now(), std::chrono::nanoseconds(0));
    try {
      return store.get(key, std::min(kLook, std::chrono::ceil<std::chrono::milliseconds>(left)));
    } catch (const KeyNotSet&) {}
    if (const std::string why = family.failure({&awaited, 1}); !why.empty()) {
      try {
        return store.get(key, std::chrono::milliseconds(0));  // it may have come just before that
      } catch (const KeyNotSet&) { throw CommError(why); }
    }
    const auto waited = Clock::now() - start;
    if (waited >= deadline)
      throw CommError(fmt::format("rank {} waited {:.3g} s in {} (deadline {:.3g} s); not there: rank {}",
                                  family.rank(), seconds_in(waited), call.text(), seconds_in(deadline), awaited));
    if (notice.say && clock.is_due(Clock::now()))
      notice.say(fmt::format("rank {} has waited {:.1f} s in {} (deadline {:.3g} s); not there: rank {}", family.rank(),
                             seconds_in(waited), call.text(), seconds_in(deadline), awaited));
  }
}

void StoreLane::compare(const Fingerprint& call, const std::vector<Message>& messages) const {
  std::vector<RankCall> calls;
  for (const int r : up_to(size())) {
    const Message& other = messages[static_cast<std::size_t>(r)];
    if (r == rank()) calls.push_back({group_.family_rank(r), call.hash(), std::string(call.text())});
    else if (!other.call.empty()) calls.push_back({group_.family_rank(r), other.hash, other.call});
  }
  if (const std::string text = difference_of_calls(calls); !text.empty()) throw CommError(text);
}

// ---- the group ----

StoreGroup::StoreGroup(std::shared_ptr<StoreFamily> family, std::vector<int> ranks, int rank, Division division,
                       std::string name)
    : StoreLane(*this, {rank, static_cast<int>(ranks.size()), kStoreGroupKind, std::move(name), kAllAbilities}, 0),
      family_(std::move(family)),
      ranks_(std::move(ranks)),
      division_(std::move(division)),
      members_(division_.path.empty() ? "" : members_text(ranks_)) {
  for (const int index : Numbers<int>(1, kNumLanes))
    lanes_.push_back(std::make_unique<StoreLane>(
        *this, GroupFacts{this->rank(), size(), kStoreGroupKind, this->name(), kAllAbilities}, index));
}

HostGroup& StoreGroup::lane(int index) {
  check(index >= 0 && index < kNumLanes, "lane {} of a process group; give 0..{}", index, kNumLanes - 1);
  if (index == 0) return *this;
  return *lanes_[static_cast<std::size_t>(index) - 1];
}

std::shared_ptr<ProcessGroup> StoreGroup::subgroup(std::span<const int> ranks, std::string_view label) {
  const PurposeScope purpose("subgroup");
  std::vector<std::vector<int>> lists;
  for (const std::string& text : gather_text(*this, bytes_of(ranks))) lists.push_back(list_of(text));
  check_lists(lists);
  std::vector<int> members;
  for (const int r : ranks) members.push_back(family_rank(r));
  const auto place = static_cast<int>(std::ranges::find(ranks, rank()) - ranks.begin());
  Division division = division_.divide();
  std::string name = division.name(label);
  auto group = std::make_shared<StoreGroup>(family_, std::move(members), place, std::move(division), std::move(name));
  group->set_deadline(deadline_.load());
  if (link_) group->shape_link(link_->shape());
  std::erase_if(subgroups_, [](const std::weak_ptr<StoreGroup>& sub) { return sub.expired(); });
  subgroups_.push_back(group);
  return group;
}

void StoreGroup::reset() { family_->reset(deadline_.load()); }

void StoreGroup::set_deadline(std::chrono::nanoseconds deadline) {
  StoreLane::set_deadline(deadline);
  for (const auto& lane : lanes_) lane->set_deadline(deadline);
  for (const auto& sub : subgroups_)
    if (const auto alive = sub.lock()) alive->set_deadline(deadline);
}

CommCounts StoreGroup::counts() const {
  CommCounts counts = StoreLane::counts();
  for (const auto& lane : lanes_) counts += lane->counts();
  return counts;
}

}  // namespace sherd::comm

namespace sherd {

std::shared_ptr<ProcessGroup> make_store_group(int rank, int size, const StoreGroupOptions& options) {
  check(rank >= 0 && rank < size, "rank {} of a store group of {} ranks; give 0..{}", rank, size, size - 1);
  std::vector<int> ranks;
  for (const int r : up_to(size)) ranks.push_back(r);
  auto group = std::make_shared<comm::StoreGroup>(std::make_shared<comm::StoreFamily>(rank, size, options),
                                                  std::move(ranks), rank, comm::Division{}, "world");
  group->set_deadline(options.deadline);
  return group;
}

}  // namespace sherd
