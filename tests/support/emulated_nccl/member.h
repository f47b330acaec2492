#pragma once
// One rank's end of a communicator. All of it is guarded by the lock of the emulated GPU.
//
//   start, split, finalize, revoke ---- begin(over, then) ---- poll() ... until over(), then a drawn number of times
//   more issue(group) ------------------ the same, and only then -- three items on the stream:
//        post     after the communicator's item before; copies what is sent into the arena
//        finish   when all that send to this rank have posted; writes what is received
//        release  when all that read the arena have finished
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/support/emulated_gpu/gpu.h"
#include "tests/support/emulated_nccl/board.h"
#include "tests/support/emulated_nccl/call.h"
#include "tests/support/emulated_nccl/control.h"
#include "tests/support/emulated_nccl/host_order.h"

namespace sherd::cuda::nccl::fake {

/// A call that NCCL does not serve; thrown to the frame of the function.
struct Refused : std::runtime_error {
  Refused(Result code, const std::string& why) : std::runtime_error(why), result(code) {}
  Result result;
};

/// Settings that a split hands on.
struct Settings {
  bool blocking = true;
  std::string name;  ///< of the config, or "rank 1 of 2"
};

struct Factor {
  std::vector<std::byte> value{};  ///< empty: `device` holds it
  const std::byte* device = nullptr;
  DataType type{};
  bool live = true;
};

class Member : public std::enable_shared_from_this<Member> {
 public:
  Member(emulated::Gpu& gpu, const Configuration& configuration, HostOrder& order, Settings settings);

  /// Joins the ranks that are given the id. Throws Refused if it cannot be.
  void join(const UniqueId& id, int world, int rank);
  /// Becomes this rank's end of its part of `parent`; `color` kNoColor: of none.
  void split_from(const std::shared_ptr<Member>& parent, int color, int key);
  /// Throws Refused unless this is ready for `call`, or was revoked and `call` is for that too.
  void check_ready(const char* call, bool if_revoked = false) const;
  /// Checks a call of a group that is being made. Throws Refused.
  void check_call(const Call& call, emulated::Stream* stream) const;
  /// Puts a group on the stream, at once or, if not blocking, when it has been polled often enough.
  void issue(std::vector<Call> calls, emulated::Stream& stream);
  void finalize();
  void revoke();
  /// Ends what is under way: items on streams end without having done anything.
  void abort();
  bool may_be_destroyed() const { return !progress_ || stopped_; }

  /// What ncclCommGetAsyncError says. Goes on with what is in progress.
  Result poll();
  /// poll() until nothing is in progress, if this blocks. Gives the lock away meanwhile.
  Result complete();

  std::uint32_t add_factor(Factor factor);
  bool destroy_factor(std::uint32_t op);
  const std::string& error() const { return error_; }
  const Settings& settings() const { return settings_; }
  int rank() const { return rank_; }
  int world() const { return world_; }
  int device() const { return device_; }
  /// Something that a stream still holds, or null.
  const std::shared_ptr<emulated::Op>& last() const { return last_; }

 private:
  struct Progress {
    std::function<bool()> over;  // may throw Refused
    std::function<void()> then;
    std::uint64_t polls;
  };
  struct Item;

  void begin(std::function<bool()> over, std::function<void()> then);
  void fail(Result result, const std::string& why);
  bool all_have_come() const;
  void compare_ranks();
  void expect(const Item& item);
  void number(Item& item);
  void queue(const std::shared_ptr<Item>& item, emulated::Stream& stream);
  void post(Item& item);
  bool may_finish(Item& item);
  void finish(const Item& item);
  bool may_release(const Item& item) const;
  bool meets_fault(const Item& item);
  std::string mismatch(const Item& item) const;
  void finish_collective(const Item& item, std::size_t index);
  void lose(const std::string& why);
  RankPart& part(int rank) const { return board_->part(rank); }
  RankPart& mine() const { return board_->part(rank_); }

  emulated::Gpu& gpu_;
  const Configuration& configuration_;
  HostOrder& order_;
  Settings settings_;
  std::unique_ptr<Board> board_;
  int world_ = 0, rank_ = -1, device_ = 0;
  std::uint64_t thread_ = this_thread();
  bool spans_processes_ = false, stopped_ = false, revoked_ = false, finalized_ = false;
  std::unique_ptr<Progress> progress_;
  Result result_ = Result::success;
  std::string error_;
  std::shared_ptr<emulated::Op> last_;
  std::vector<Factor> factors_;
  std::uint64_t collectives_ = 0, splits_ = 0;
  std::vector<std::uint64_t> sends_, receives_;  // by peer
};

}  // namespace sherd::cuda::nccl::fake
