#pragma once
// The collectives of ranks that exchange bytes through a store.
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/comm/group/division.h"
#include "runtime/comm/group/fingerprint.h"
#include "runtime/comm/group/lanes.h"
#include "runtime/comm/group/link.h"
#include "runtime/comm/hosts/store_family.h"

namespace sherd::comm {

class StoreGroup;

/// The calls of one lane. What is of the whole group goes to the group, which is its own lane 0.
class StoreLane : public HostGroup {
 public:
  StoreLane(StoreGroup& group, GroupFacts facts, int lane);

  bool supports(Device device) const override { return device == Device::cpu(); }
  void issue(Collective call, const CollectiveSite& site) override { issue_on_host(*this, std::move(call), site); }
  HostGroup& lane(std::string_view queue) override;
  HostGroup& lane(int index) override;
  void run(const Collective& call) override;
  void meet(const Collective& call) override;
  std::string failure() override;
  std::shared_ptr<ProcessGroup> subgroup(std::span<const int> ranks, std::string_view label) override;
  void abort(std::string_view reason) override;
  void reset() override;
  void set_deadline(std::chrono::nanoseconds deadline) override { deadline_ = deadline; }
  CommCounts counts() const override;
  void shape_link(const LinkShape& shape) override;
  SharedHeap shared_heap() const override { return {}; }

 protected:
  using Clock = std::chrono::steady_clock;
  /// What a rank has set for a call: what it takes the call for, and its bytes.
  struct Message {
    std::uint64_t hash = 0;
    std::string call, bytes;
  };

  void begin_epoch();
  Fingerprint opened(const Collective& call);
  void enter(const Collective& call, bool moves);
  /// `moves`: the bytes too, which something else takes the time for otherwise.
  void count(const Collective& call, Clock::time_point start, bool moves);
  void move(const Collective& call, const Fingerprint& fingerprint);
  void exchange(const Fingerprint& call, bool is_for_all, const std::vector<std::string>& bytes,
                std::vector<std::string>& received);
  void pass(const Collective& call, const Fingerprint& fingerprint);
  void post(const std::string& key, const Fingerprint& call, std::string_view bytes);
  Message receive(const std::string& key, int peer, const Fingerprint& call, Clock::time_point start);
  std::string await(const std::string& key, int peer, const Fingerprint& call, Clock::time_point start);
  void compare(const Fingerprint& call, const std::vector<Message>& messages) const;

  StoreGroup& group_;
  const int lane_;
  std::atomic<std::chrono::nanoseconds> deadline_{std::chrono::seconds(300)};
  std::int64_t epoch_ = 0, sequence_ = 0;
  std::map<std::pair<int, int>, std::int64_t> pairs_;  // calls from a rank to another
  std::vector<std::string> before_, now_;              // keys that this rank has set for the call before, and for this
  mutable std::mutex counts_mutex_;
  CommCounts counts_;
};

class StoreGroup final : public StoreLane {
 public:
  /// `ranks` are those of the family, in this group's order.
  StoreGroup(std::shared_ptr<StoreFamily> family, std::vector<int> ranks, int rank, Division division,
             std::string name);

  HostGroup& lane(std::string_view queue) override { return lane(lane_numbers_.of(queue)); }
  HostGroup& lane(int index) override;
  std::shared_ptr<ProcessGroup> subgroup(std::span<const int> ranks, std::string_view label) override;
  void reset() override;
  void set_deadline(std::chrono::nanoseconds deadline) override;
  CommCounts counts() const override;
  void shape_link(const LinkShape& shape) override { link_ = std::make_unique<Link>(shape, size()); }

  StoreFamily& family() { return *family_; }
  /// Null unless it was shaped.
  Link* link() const { return link_.get(); }
  int family_rank(int rank) const { return ranks_[static_cast<std::size_t>(rank)]; }
  /// "ranks 1,3"; empty for the group of all.
  const std::string& members() const { return members_; }
  /// Keys of the group have it: no two groups of a family that have a rank in common, and no two of one division, share
  /// it.
  std::string path() const { return fmt::format("{}@{}", division_.path, ranks_.front()); }

 private:
  const std::shared_ptr<StoreFamily> family_;
  const std::vector<int> ranks_;
  Division division_;
  const std::string members_;
  std::vector<std::unique_ptr<StoreLane>> lanes_;  // 1, 2, ...
  LaneNumbers lane_numbers_;
  std::unique_ptr<Link> link_;
  std::vector<std::weak_ptr<StoreGroup>> subgroups_;
};

}  // namespace sherd::comm
