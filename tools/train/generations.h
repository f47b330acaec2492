#pragma once
// Which ranks are the job's group, time and again: what ranks that outlive others agree on over the launcher's store.
//
//   launcher   a rank has died:  publishes generation 7: "0,1"         a replica is ready: publishes 8: "0,1,2,3"
//   ranks      lost a peer:      vote in 7, read all votes, form 7     between two steps:  vote in 8, form 8
//
// A vote says how many updates a rank has made, and whether it has come to the point of the next one where that can be
// made without its peers (nn/optim/update_agreement.h). A rank that has made it knows that all had come there, so all
// votes of a generation have one answer: the update is made by all, or by none. Who learns of a newer generation
// before it has read all votes goes on to that, with the same vote; whoever has read them has changed nothing that the
// newer votes could not say.
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/comm/group/wait_notice.h"
#include "runtime/comm/store/store.h"
#include "runtime/op/attrs/attr_list.h"

namespace sherd::train {

/// The keys of the store that the launcher and the ranks of a job use.
namespace survival_key {
/// Rank 0, when all ranks have their state: "0,1;2,3", the ranks of each replica.
inline constexpr const char* kReplicas = "survive/replicas";
/// Rank 0, before that: what newcomers read the data by.
inline constexpr const char* kVocabulary = "survive/vocabulary";
/// The launcher: "0,1", the ranks of a generation. Generation 0, all ranks, has no key. "over": the job has ended.
std::string generation(int number);
inline constexpr const char* kOver = "over";
/// Rank 0: after how many milliseconds a rank that others wait for is given up.
inline constexpr const char* kPatience = "survive/patience";
/// --deadline in milliseconds: those that live.
inline constexpr const char* kDeadline = "survive/deadline";
/// A rank that was started again, in its `life`th life: it has read its data.
std::string ready(int life, int rank);
/// A vote of a rank in a generation.
std::string vote(int number, int rank);
/// How many ranks of a generation have found that its group has failed, and each of them.
std::string num_waiting(int number);
std::string waiting(int number, int rank);
}  // namespace survival_key

/// "0,1,3".
std::string ranks_to_text(const std::vector<int>& ranks);
/// Error for other text.
std::vector<int> ranks_from_text(const std::string& text);

/// Ranks have the numbers of the first generation, in ascending order; in the group of a generation they are numbered
/// anew in that order.
struct Generation {
  int number = 0;
  std::vector<int> ranks;
  bool is_over = false;  ///< there is none any more
};

struct UpdateVote {
  bool has_state = true;  ///< false: a rank that was started again, and has not been given the state yet
  std::int64_t updates = 0;
  bool can_update = false;  ///< it has come to the point where the next one needs no peers
  static constexpr AttrField fields[] = {attr<&UpdateVote::has_state>("has_state"),
                                         attr<&UpdateVote::updates>("updates"),
                                         attr<&UpdateVote::can_update>("can_update")};
};
/// Error for text that is none.
UpdateVote vote_from_text(const std::string& text);

struct Agreement {
  Generation generation;
  std::int64_t updates = 0;     ///< that all who have the state have made, or make now
  std::vector<bool> has_state;  ///< by place in generation.ranks
};

class Generations {
 public:
  /// Generations as this rank sees them; `last`: the one that it was started in, or after. All waits end after
  /// `deadline` without progress; long ones give notice.
  Generations(Store& store, int rank, int last, std::chrono::milliseconds deadline, WaitNotice notice = {});

  /// Waits for a generation after the last one, votes, and waits for the votes of all its ranks. CommError after the
  /// deadline, naming who has not voted, and if the launcher has left out this rank, which has the state.
  Agreement agree(const UpdateVote& own);
  /// Whether there is a newer one than the last; asks the store.
  bool has_newer();
  /// For ShmGroupOptions::gives_up.
  std::string why_to_give_up();

 private:
  std::optional<Generation> published(int number, std::chrono::milliseconds wait);
  std::optional<Generation> newest_after(int number, std::chrono::milliseconds wait);
  Generation await_after(int number, const UpdateVote& own);
  std::optional<Agreement> count_votes(const Generation& generation);

  Store& store_;
  const int rank_;
  int last_;
  const std::chrono::milliseconds deadline_;
  const WaitNotice notice_;
};

}  // namespace sherd::train
