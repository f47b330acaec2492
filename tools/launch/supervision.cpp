// One poll loop over: stop signals (as bytes), ended children (signalfd), the ranks' pipes and our own outputs. Every
// step is non-blocking, so that a reader who stops reading our output never keeps a Ctrl-C from being heard; ranks
// then wait in their own writes, because we read no more than we can pass on.
//
// The end of the job is the end of all children: this process is the subreaper of everything the ranks start.
#include "tools/launch/supervision.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <functional>

#include "runtime/tensor/error.h"
#include "runtime/tensor/indices.h"
#include "tools/launch/process_tree.h"
#include "tools/train/exit_status.h"
#include "tools/train/stop_signals.h"

namespace sherd {

using namespace train;

namespace {

using std::chrono::milliseconds;

constexpr milliseconds kLinger{200};  // what ranks leave behind may be about to end
constexpr milliseconds kKillAgain{50};

using RankProcesses = std::vector<std::unique_ptr<RankProcess>>;
using Failures = std::vector<const RankProcess*>;

/// To the ranks that wait for it.
void pass_on(int signal, const RankProcesses& ranks) {
  for (const auto& rank : ranks)
    if (!rank->status && catches(rank->pid, signal)) ::kill(rank->pid, signal);
}

const RankProcess* to_blame(const Failures& failures) {
  const auto own =
      std::find_if(failures.begin(), failures.end(), [](const RankProcess* r) { return !blames_a_peer(*r); });
  if (own != failures.end()) return *own;
  return failures.empty() ? nullptr : failures.front();
}

/// "; rank 1 had ended (status 0)": whom a rank that has lost a peer may have waited for. Those that failed are told.
std::string ended_well(const RankProcesses& all) {
  std::vector<int> ranks;
  for (const auto& rank : all)
    if (rank->status && !has_failed(*rank->status)) ranks.push_back(rank->rank);
  if (ranks.empty()) return {};
  return fmt::format("; rank{} {} had ended (status 0)", ranks.size() == 1 ? "" : "s", fmt::join(ranks, ", "));
}

/// The rank to blame, and those that were killed at the same time: they cannot say anything themselves.
std::string describe(const Failures& failures, const RankProcesses& ranks) {
  constexpr std::size_t kMostNamed = 8;
  const RankProcess* culprit = to_blame(failures);
  std::string text = describe_end(*culprit);
  std::size_t named = 1, others = 0;
  for (const RankProcess* rank : failures) {
    if (rank == culprit || WIFEXITED(*rank->status)) continue;
    if (++named <= kMostNamed) text += "; " + describe_end(*rank);
    else ++others;
  }
  if (others > 0) text += fmt::format("; and {} more", others);
  return blames_a_peer(*culprit) ? text + ended_well(ranks) : text;
}

int status_after_signal(int signal, const RankProcesses& ranks) {
  int status = kDone;
  for (const auto& rank : ranks) {
    if (rank->is_outlived) continue;
    if (has_failed(*rank->status) && !was_stopped(*rank->status)) return 128 + signal;
    status = std::max(status, WEXITSTATUS(*rank->status));
  }
  return status == kDone ? 128 + signal : status;
}

}  // namespace

Supervision::Supervision(const SuperviseOptions& options, const JobStart& start, const sigset_t& rank_mask, int control)
    : options_(options), start_(options, start, rank_mask), control_(control) {
  ::signal(SIGPIPE, SIG_IGN);
  ::fcntl(control, F_SETFL, O_NONBLOCK);
  sigset_t child;
  ::sigemptyset(&child);
  ::sigaddset(&child, SIGCHLD);
  child_signals_ = Descriptor(::signalfd(-1, &child, SFD_CLOEXEC | SFD_NONBLOCK));
  check(child_signals_.is_open(), "cannot watch child processes: signalfd: {}", std::strerror(errno));
}

Supervision::~Supervision() {
  if (has_children_) kill_descendants(kKillLimit);
}

/// Blocks until something happens or the next deadline, and handles it.
void Supervision::wait_for_events() {
  std::vector<pollfd> polls;
  std::vector<std::function<void()>> actions;
  const auto watch = [&](int fd, short events, std::function<void()> action) {
    polls.push_back({fd, events, 0});
    actions.push_back(std::move(action));
  };
  if (launcher_lives_) watch(control_, POLLIN, [this] { read_control(); });
  if (has_children_) watch(child_signals_.get(), POLLIN, [this] { reap(); });
  for (const auto& rank : ranks_)
    for (RankStream* stream : {&rank->out, &rank->err})
      if (stream->fd.is_open() && stream->to->has_room())
        watch(stream->fd.get(), POLLIN, [this, stream] { relay_.read_some(*stream); });
  for (OutputQueue* queue : {&relay_.out, &relay_.err})
    if (relay_.wants_to_write(*queue)) watch(queue->fd(), POLLOUT, [queue] { queue->write_some(); });
  auto until = stopping_ ? kill_at_ : stop_at_;
  if (survival_ && !stopping_) until = std::min(until, survival_->next_look(Clock::now()));
  const auto wait = until - Clock::now();
  const std::int64_t most = looks_for_frozen() ? stopped_.interval().count() : 60'000;
  const auto wait_ms = std::chrono::ceil<milliseconds>(wait).count();
  ::poll(polls.data(), polls.size(), static_cast<int>(std::clamp<std::int64_t>(wait_ms, 0, most)));
  for (const std::size_t i : indices(polls))
    if (polls[i].revents != 0) actions[i]();
}

void Supervision::read_control() {
  char signal = 0;
  const ssize_t got = ::read(control_, &signal, 1);
  if (got < 0) return;
  if (got == 0) launcher_lives_ = false;  // Nobody waits for us: leave nothing behind, quickly.
  if (got > 0 && signal != SIGUSR1 && interrupted_by_ == 0) interrupted_by_ = signal;
  if (!has_children_ || !launcher_lives_) relay_.close();
  if (!has_children_) return;
  if (launcher_lives_ && signal == SIGUSR1) return pass_on(signal, ranks_);
  if (stopping_ || !launcher_lives_) return kill_all();
  user_signal_ = signal;
  relay_.say(fmt::format("{}: stopping {} rank{}; once more kills at once", signal_name(signal), start_.num_ranks(),
                         start_.num_ranks() == 1 ? "" : "s"));
  stop(signal, options_.save_grace);
}

/// Takes note of the ranks that have ended, and buries what they had left to us.
void Supervision::reap() {
  signalfd_siginfo info;
  while (::read(child_signals_.get(), &info, sizeof info) > 0) {}
  int status = 0;
  pid_t pid;
  while ((pid = ::waitpid(-1, &status, WNOHANG)) > 0) {
    const auto found = std::find_if(ranks_.begin(), ranks_.end(), [&](const auto& rank) { return rank->pid == pid; });
    if (found == ranks_.end() || (*found)->status) continue;
    RankProcess& rank = **found;
    rank.status = status;
    for (RankStream* stream : {&rank.out, &rank.err}) relay_.drain(*stream);
    if (has_failed(status) && is_outlived(rank)) continue;
    if (survival_ && survival_->is_member(rank.rank) && (!has_failed(status) || was_stopped(status))) {
      has_one_ended_well_ = true;
      survival_->end();  // who waits for a group waits in vain
    }
    if (!has_failed(status) || stopping_) continue;
    failures_.push_back(&rank);
    end_what_waits();
    // Its peers may go on for a while: each may be about to tell the reason, or what it was doing; and after a signal
    // all of them end by themselves.
    stop_at_ = std::min(stop_at_, Clock::now() + (was_stopped(status) ? options_.grace : options_.blame_window));
  }
  if (all_ranks_ended()) stop_at_ = std::min(stop_at_, Clock::now() + kLinger);
  if (pid < 0 && errno == ECHILD) has_children_ = false;
}

// ---- replicas that die while the job goes on ----

/// Whether the job goes on without `rank`, which has failed. Ends that are meant count for the whole job, unless the
/// rank does not take part yet.
bool Supervision::is_outlived(RankProcess& rank) {
  if (!survival_ || killed_at_ || (stopping_ && user_signal_ == 0)) return false;
  if (rank.is_outlived) return true;
  const bool is_users_kill = user_signal_ != 0 && WIFSIGNALED(*rank.status);  // it was not ready to save
  const bool takes_part = survival_->is_member(rank.rank) || !survival_->is_known();
  if (is_meant(*rank.status) && takes_part && !is_users_kill) return false;
  if (has_one_ended_well_ && survival_->is_known()) {  // it was not needed any more
    relay_.say(describe_end(rank) + ", when others had ended");
    end_what_waits();
    return rank.is_outlived = true;
  }
  Survival::Loss loss;
  const Survival::Fate fate = survival_->lose(rank.rank, Clock::now(), &loss);
  if (fate == Survival::Fate::ends) return false;
  if (fate == Survival::Fate::goes_on) {
    if (!stopping_) relay_.say(fmt::format("{}; {}", describe_end(rank), loss.text));
    for (const int peer : loss.ranks) give_up(peer);
    survival_->tell();
  }
  return rank.is_outlived = true;
}

void Supervision::give_up(int rank) {
  RankProcess& process = *ranks_[static_cast<std::size_t>(rank)];
  process.is_outlived = true;
  if (!process.status) ::kill(-process.pid, SIGKILL);
}

/// Ranks that wait for a new group learn that there is none any more, and those that do not take part yet are ended.
void Supervision::end_what_waits() {
  if (!survival_) return;
  survival_->end();
  for (const auto& rank : ranks_)
    if (!rank->status && survival_->is_known() && !survival_->is_member(rank->rank)) give_up(rank->rank);
}

void Supervision::look_after_replicas() {
  if (!survival_ || stopping_) return;
  const bool is_over = std::ranges::all_of(ranks_, [&](const auto& rank) {
    return rank->status || (survival_->is_known() && !survival_->is_member(rank->rank));
  });
  if (is_over) return end_what_waits();
  const auto now = Clock::now();
  for (const std::string& line : survival_->admit(now)) relay_.say(line);
  const auto is_rank_stopped = [&](int rank) {
    return is_stopped(ranks_[static_cast<std::size_t>(rank)]->pid, descendants());
  };
  for (const int rank : survival_->stragglers(now, is_rank_stopped)) {
    const RankProcess& process = *ranks_[static_cast<std::size_t>(rank)];
    if (process.status) continue;
    relay_.say(fmt::format("rank {} does not come to where others wait for it; it is killed", rank));
    ::kill(-process.pid, SIGKILL);
  }
  std::vector<bool> has_ended;
  for (const auto& rank : ranks_) has_ended.push_back(rank->status.has_value());
  for (const std::vector<int>& ranks : survival_->to_start(now, has_ended)) start_again(ranks);
}

/// Starts the ranks of a replica. The system may grant later what it refuses now: the others go on meanwhile.
void Supervision::start_again(const std::vector<int>& ranks) {
  try {
    for (const int rank : ranks) {
      std::unique_ptr<RankProcess>& process = ranks_[static_cast<std::size_t>(rank)];
      for (RankStream* stream : {&process->out, &process->err}) relay_.end(*stream);
      process = start_.start(rank, relay_, survival_.get());
      has_children_ = true;
    }
  } catch (const Error& error) {
    Survival::Loss loss;
    survival_->lose(ranks.front(), Clock::now(), &loss);
    relay_.say(fmt::format("{}; {}", error.what(), loss.text));
    for (const int rank : ranks) give_up(rank);
  }
}

/// One rank alone may be stopped as its user likes.
bool Supervision::looks_for_frozen() const { return !stopping_ && start_.num_ranks() > 1 && !all_ranks_ended(); }

/// Peers give up a frozen rank; but not when all that are left are frozen.
void Supervision::kill_frozen() {
  if (!looks_for_frozen()) return;
  std::vector<pid_t> groups;
  for (const auto& rank : ranks_)
    if (!rank->status) groups.push_back(rank->pid);
  if (stopped_.of(groups) < options_.frozen_after) return;
  for (const auto& rank : ranks_) {
    if (rank->status || rank->was_frozen) continue;
    relay_.say(fmt::format("rank {} has been stopped for {:.3g} s, and no rank runs: killing it", rank->rank,
                           std::chrono::duration<double>(options_.frozen_after).count()));
    rank->was_frozen = true;
    ::kill(-rank->pid, SIGKILL);
  }
}

/// Decides, after every event, whether it is time to stop or to kill what still runs.
void Supervision::advance() {
  if (!has_children_) return;
  if (!stopping_ && Clock::now() >= stop_at_) {
    relay_.say(all_ranks_ended() ? "all ranks have ended; stopping the processes that they left behind"
                                 : fmt::format("{}; stopping the other ranks", describe(failures_, ranks_)));
    stop(SIGTERM, options_.grace);
  }
  if (Clock::now() >= kill_at_) kill_all();
  kill_frozen();
}

void Supervision::stop(int signal, milliseconds grace) {
  stopping_ = true;
  kill_at_ = Clock::now() + grace;
  // A rank's group goes by one call, which no fork can slip through; its number is not reused before it is reaped.
  for (const auto& rank : ranks_)
    if (!rank->status) {
      ::kill(-rank->pid, signal);
      ::kill(-rank->pid, SIGCONT);
    }
  // Processes in no living rank's group: orphans of ended ranks, and what made itself independent.
  for (const ProcessEntry& entry : descendants()) {
    const bool reached = std::any_of(ranks_.begin(), ranks_.end(),
                                     [&](const auto& rank) { return !rank->status && rank->pid == entry.group; });
    if (reached || entry.zombie) continue;
    ::kill(entry.pid, signal);
    ::kill(entry.pid, SIGCONT);
  }
}

void Supervision::kill_all() {
  stopping_ = true;
  if (!killed_at_) killed_at_ = Clock::now();
  check(Clock::now() - *killed_at_ < kKillLimit, "some processes of the ranks did not end by SIGKILL within {} s",
        kKillLimit.count() / 1000);
  for (const auto& rank : ranks_)
    if (!rank->status) ::kill(-rank->pid, SIGKILL);
  signal_descendants(SIGKILL);
  kill_at_ = Clock::now() + kKillAgain;
}

/// Prints why it ended, after everything else; returns the status for the shell.
int Supervision::report() {
  while (!relay_.out.is_empty()) wait_for_events();
  if (relay_.out.error() != 0 && relay_.out.error() != EPIPE)
    relay_.say(fmt::format("cannot write: {}", std::strerror(relay_.out.error())));
  if (user_signal_ != 0) {
    relay_.say(fmt::format("stopped by {}", signal_name(user_signal_)));
    while (!relay_.err.is_empty()) wait_for_events();
    return status_after_signal(user_signal_, ranks_);
  }
  const RankProcess* culprit = to_blame(failures_);
  if (culprit && start_.num_ranks() == 1) relay_.say(describe_end(*culprit));
  if (culprit && start_.num_ranks() > 1) {
    const auto& tail = culprit->err.lines.tail();
    const std::string what = describe(failures_, ranks_);
    const std::string who = what == describe_end(*culprit) ? "it" : fmt::format("rank {}", culprit->rank);
    relay_.say(tail.empty() ? fmt::format("{}{} wrote nothing to stderr", what, who == "it" ? " and" : "; " + who)
                            : fmt::format("{}; the end of what {} wrote to stderr:", what, who));
    for (const std::string& line : tail) relay_.err.append("  " + line + "\n");
  }
  // One of the ranks that ran out of memory says what would fit; it need not be the one to blame.
  for (const auto& rank : ranks_)
    if (const std::string fits = what_fits(*rank); culprit && !fits.empty()) {
      relay_.say(fmt::format("what fits, by rank {}: {}", rank->rank, fits));
      break;
    }
  while (!relay_.err.is_empty()) wait_for_events();
  return culprit ? shell_status(*culprit->status) : 0;
}

/// Ranks that ended because of a peer are not reported.
std::optional<StartFailure> Supervision::failure() const {
  const RankProcess* culprit = to_blame(failures_);
  if (!culprit || interrupted_by_ != 0 || !launcher_lives_ || is_meant(*culprit->status)) return std::nullopt;
  const bool has_no_reader = relay_.out.is_closed() || relay_.err.is_closed() ||
                             (WIFSIGNALED(*culprit->status) && WTERMSIG(*culprit->status) == SIGPIPE);
  if (has_no_reader) return std::nullopt;  // nor would another start
  StartFailure failure{.what = describe(failures_, ranks_), .slots = {}};
  for (const RankProcess* rank : failures_)
    if (!blames_a_peer(*rank) && !rank->was_frozen) failure.slots.push_back(rank->slot);
  if (start_.num_ranks() > 1 && failure.slots.size() == ranks_.size()) failure.slots.clear();  // a fault of no rank
  return failure;
}

void say_on_error_stream(const std::string& text) {
  const std::string line = fmt::format("sherd run: {}\n", text);
  [[maybe_unused]] const ssize_t written = ::write(2, line.data(), line.size());
}

StartOutcome Supervision::run() {
  if (options_.survive) survival_ = start_.watch_replicas();
  has_children_ = true;
  for (const int rank : up_to(start_.num_ranks())) ranks_.push_back(start_.start(rank, relay_, survival_.get()));
  while (has_children_) {
    wait_for_events();
    look_after_replicas();
    advance();
  }
  for (const auto& rank : ranks_)
    for (RankStream* stream : {&rank->out, &rank->err}) relay_.end(*stream);
  StartOutcome outcome;
  outcome.status = report();  // where the user may interrupt us yet
  outcome.failure = failure();
  if (outcome.failure) outcome.saves = start_.told_saves();
  // A failure that would have been mended, had the user not wanted the end since.
  if (options_.restart.restarts > 0 && outcome.status != kDone && user_signal_ == 0 && interrupted_by_ != 0) {
    say_on_error_stream(fmt::format("stopped by {}", signal_name(interrupted_by_)));
    outcome.status = 128 + interrupted_by_;
  }
  return outcome;
}

}  // namespace sherd
