#pragma once
// How ranks talk, by `--group`, and on which device each of them computes.
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "runtime/comm/group/composed_group.h"
#include "runtime/comm/group/process_group.h"

namespace sherd {

/// "auto", "shm", "thread", "nccl" or "staged", as flags and configs spell it; Error for another text.
class GroupChoice {
 public:
  enum class Kind : std::uint8_t { automatic, shm, thread, nccl, staged };
  GroupChoice(std::string_view text);                                     // NOLINT: config.group = "thread"
  GroupChoice(const char* text) : GroupChoice(std::string_view(text)) {}  // NOLINT
  std::string text() const;
  Kind kind() const { return kind_; }
  bool operator==(const GroupChoice&) const = default;

 private:
  Kind kind_;
};

/// "auto", "ordered" or "fast": `--sums`. Error for another text.
class Sums {
 public:
  Sums(std::string_view text);                              // NOLINT: config.sums = "fast"
  Sums(const char* text) : Sums(std::string_view(text)) {}  // NOLINT
  const std::string& text() const { return text_; }
  /// Unset: whoever sums decides.
  std::optional<SumsBy> by() const;
  bool operator==(const Sums&) const = default;

 private:
  std::string text_;
};

inline constexpr const char* kGroupHelp =
    "how ranks talk: shm (processes of one host), thread (threads of one process); of memory of GPUs: nccl, or staged "
    "(through the host); auto: shm, and on GPUs nccl where it is, else staged";

/// The device of this rank of `group`, where `asked` is that of the first rank of each host: the next rank of the host
/// has the next device, and round again where there are fewer. So ranks to which a launcher shows one device each have
/// that one. The CPU is every rank's. Throws Error, with the reason, if there is no such device.
Device device_of_rank(Device asked, const ProcessGroup& group);

/// Throws Error before ranks meet, naming this one and the remedy, if they run on several hosts and compute on CPUs:
/// tensors of CPUs move through memory that ranks share.
void check_hosts(Device device);

struct ChosenGroup {
  std::shared_ptr<ProcessGroup> group;
  std::string text;  ///< "memory of GPUs through the host (staged): ..."; empty where `host` moves all there is
};

/// The group of the ranks of `host`, a group that moves host memory, for tensors on `device`, which is that of each
/// rank: `host` itself on CPUs. Collective; a ghost's group, and that of one rank, stay as they are. Throws Error, the
/// same on every rank, with the remedy: a choice that does not move such memory, devices or libraries that differ from
/// rank to rank, two ranks on one device where the choice is not `staged`, `nccl` where there is none.
ChosenGroup chosen_group(std::shared_ptr<ProcessGroup> host, Device device, const GroupChoice& choice,
                         const Sums& sums = "auto");

}  // namespace sherd
