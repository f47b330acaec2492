// One poll loop over: stop signals (as bytes), ended children (signalfd), the ranks' pipes and our own outputs. Every
// step is non-blocking, so that a reader who stops reading our output never keeps a Ctrl-C from being heard; ranks
// then wait in their own writes, because we read no more than we can pass on.
//
// The end of the job is the end of all children: this process is the subreaper of everything the ranks start.
#include "tools/launch/supervise.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>

#include "runtime/comm/store/hmac.h"
#include "runtime/comm/store/tcp_store_server.h"
#include "runtime/tensor/error.h"
#include "tools/launch/launch_guard.h"
#include "tools/launch/line_relay.h"
#include "tools/launch/process_tree.h"
#include "tools/launch/spawn.h"
#include "tools/launch/stopped_time.h"
#include "tools/train/exit_status.h"
#include "tools/train/stop_signals.h"

namespace sherd {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr std::size_t kTailLines = 20;
constexpr milliseconds kLinger{200};  // what ranks leave behind may be about to end
constexpr milliseconds kKillAgain{50};

struct Stream {
  Descriptor fd;  // closed: at its end, or the rank writes to our own descriptor
  RankLines lines;
  OutputQueue* to;
};

struct Rank {
  int rank;
  int slot;  // its number in the first start
  pid_t pid;
  std::optional<int> status;  // as from waitpid, once it has ended
  Stream out, err;
  bool was_frozen = false;  // and killed for it
};

bool has_failed(int status) { return !WIFEXITED(status) || WEXITSTATUS(status) != 0; }

int shell_status(int status) { return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status); }

/// It ended by itself, because of a signal.
bool was_stopped(int status) {
  return WIFEXITED(status) && (WEXITSTATUS(status) == kStoppedAndSaved || WEXITSTATUS(status) == kStoppedWithoutSave);
}

std::string describe_end(const Rank& rank) {
  const int status = *rank.status;
  if (WIFEXITED(status)) return fmt::format("rank {} exited with status {}", rank.rank, WEXITSTATUS(status));
  const char* meaning = ::sigdescr_np(WTERMSIG(status));
  return fmt::format("rank {} was killed by {} ({})", rank.rank, signal_name(WTERMSIG(status)),
                     meaning ? meaning : "unknown");
}

/// A rank that lost a peer says so, and so does one that was told of a peer's error ("sherd: rank 3: reason"); the
/// peer's own error is the one to read.
bool blames_a_peer(const Rank& rank) {
  const auto& tail = rank.err.lines.tail();
  return std::any_of(tail.begin(), tail.end(), [&](const std::string& line) {
    constexpr std::string_view kTold = "sherd: rank ";
    if (line.find("CommError") != line.npos) return true;
    if (!line.starts_with(kTold)) return false;
    int peer = -1;
    const char* const last = line.data() + line.size();
    const auto [end, error] = std::from_chars(line.data() + kTold.size(), last, peer);
    return error == std::errc() && end != last && *end == ':' && peer != rank.rank;
  });
}

bool same_file(int a, int b) {
  struct stat first{}, second{};
  return ::fstat(a, &first) == 0 && ::fstat(b, &second) == 0 && first.st_dev == second.st_dev &&
         first.st_ino == second.st_ino;
}

std::vector<std::string> environment_without_ranks() {
  std::vector<std::string> kept;
  for (char** entry = ::environ; entry && *entry; ++entry) {
    const std::string_view text = *entry;
    bool ours = false;
    for (const auto* name :
         {"SHERD_RANK=", "SHERD_WORLD_SIZE=", "SHERD_LOCAL_RANK=", "SHERD_LOCAL_WORLD_SIZE=", "SHERD_STORE=",
          "SHERD_SECRET=", "SHERD_JOB=", "SHERD_RESTART=", "SHERD_SLOT=", "SHERD_FULL_WORLD_SIZE="})
      ours = ours || text.starts_with(name);
    if (!ours) kept.emplace_back(text);
  }
  return kept;
}

/// Whether the process has a handler: a signal that it does not expect, or not yet, would end it.
bool catches(pid_t pid, int signal) {
  std::ifstream status(fmt::format("/proc/{}/status", pid));
  constexpr std::string_view kKey = "SigCgt:";
  for (std::string line; std::getline(status, line);)
    if (line.starts_with(kKey)) return (std::stoull(line.substr(kKey.size()), nullptr, 16) >> (signal - 1) & 1) != 0;
  return false;
}

/// One start of the ranks.
struct Start {
  std::string job;
  std::vector<int> slots;  // by rank
  int restart = 0;
};

/// How it ended.
struct Outcome {
  int status = 0;
  std::optional<StartFailure> failure;  // one that a new start may mend
};

/// The program or the user wanted this end: another start would end alike, or go on against the user's will.
bool is_meant(int status) {
  if (WIFSIGNALED(status)) {
    const int signal = WTERMSIG(status);
    return signal == SIGTERM || signal == SIGINT || signal == SIGHUP || signal == SIGQUIT;
  }
  const int exit = WEXITSTATUS(status);
  return exit == kUsage || exit == kDiverged || was_stopped(status);
}

class Supervision {
 public:
  Supervision(const SuperviseOptions& options, const Start& start, const sigset_t& rank_mask, int control);
  ~Supervision();
  Supervision(const Supervision&) = delete;
  Supervision& operator=(const Supervision&) = delete;

  Outcome run();

 private:
  int num_ranks() const { return static_cast<int>(start_.slots.size()); }
  void start_rank(int rank);
  void wait_for_events();
  void read_control();
  void pass_on(int signal) const;
  void reap();
  milliseconds patience_after(const Rank& failed) const;
  bool read_some(Stream& stream);
  void drain(Stream& stream);
  void finish(Stream& stream);
  bool is_waiting_for_the_last() const;
  void kill_frozen();
  void advance();
  void stop(int signal, milliseconds grace);
  void kill_all();
  const Rank* to_blame() const;
  std::string describe_failures() const;
  void flush(OutputQueue& queue);
  int report();
  int status_after_signal() const;
  std::optional<StartFailure> failure() const;
  void say(std::string_view text) { err_.append(fmt::format("sherd run: {}\n", text)); }
  bool all_ranks_ended() const {
    return std::all_of(ranks_.begin(), ranks_.end(), [](const auto& rank) { return rank->status.has_value(); });
  }

  const SuperviseOptions& options_;
  const Start& start_;
  const sigset_t rank_mask_;
  const int control_;
  bool launcher_lives_ = true;
  const std::string secret_ = random_hex(32);
  const TcpStoreServer server_{{.secret = secret_}};
  Descriptor child_signals_;
  OutputQueue out_{1}, err_{2};
  std::vector<char> buffer_ = std::vector<char>(65536);
  const bool shared_output_ = same_file(1, 2);
  std::vector<std::unique_ptr<Rank>> ranks_;
  bool has_children_ = false;
  std::vector<const Rank*> failures_;  // before anything was stopped, in the order of their ends
  Clock::time_point stop_at_ = Clock::time_point::max();
  Clock::time_point kill_at_ = Clock::time_point::max();
  std::optional<Clock::time_point> killed_at_;
  bool stopping_ = false;
  StoppedTime stopped_{options_.frozen_after};
  int user_signal_ = 0;     // what made us stop, if it was the user
  int interrupted_by_ = 0;  // the user's first signal, perhaps when we had stopped already
};

Supervision::Supervision(const SuperviseOptions& options, const Start& start, const sigset_t& rank_mask, int control)
    : options_(options), start_(start), rank_mask_(rank_mask), control_(control) {
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

void Supervision::start_rank(int rank) {
  const int count = num_ranks(), slot = start_.slots[static_cast<std::size_t>(rank)];
  SpawnPlan plan{.command = options_.command, .environment = environment_without_ranks(), .mask = rank_mask_};
  for (const auto& [name, value] : {std::pair("SHERD_RANK", rank),
                                    {"SHERD_LOCAL_RANK", rank},
                                    {"SHERD_WORLD_SIZE", count},
                                    {"SHERD_LOCAL_WORLD_SIZE", count},
                                    {"SHERD_RESTART", start_.restart},
                                    {"SHERD_SLOT", slot},
                                    {"SHERD_FULL_WORLD_SIZE", options_.ranks}})
    plan.environment.push_back(fmt::format("{}={}", name, value));
  plan.environment.push_back("SHERD_JOB=" + start_.job);
  plan.environment.push_back(fmt::format("SHERD_STORE=127.0.0.1:{}", server_.port()));
  plan.environment.push_back("SHERD_SECRET=" + secret_);

  // A terminal's input goes to its foreground process group only, and no rank is in that.
  const bool reads_input = rank == 0 && ::isatty(0) == 0;
  const Descriptor nothing(reads_input ? -1 : ::open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (!reads_input) plan.in = nothing.get();
  Pipe out, err;
  if (count > 1) {
    out = make_pipe(), err = make_pipe();
    plan.out = out.write.get(), plan.err = err.write.get();
    for (const int fd : {out.read.get(), err.read.get()}) ::fcntl(fd, F_SETFL, O_NONBLOCK);
  }
  const std::string prefix = fmt::format("[{}] ", rank);
  const pid_t pid = spawn(plan);
  has_children_ = true;
  ranks_.push_back(
      std::make_unique<Rank>(Rank{rank,
                                  slot,
                                  pid,
                                  std::nullopt,
                                  {std::move(out.read), RankLines(prefix, ::isatty(1) != 0, 0), &out_},
                                  {std::move(err.read), RankLines(prefix, ::isatty(2) != 0, kTailLines), &err_},
                                  false}));
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
    for (Stream* stream : {&rank->out, &rank->err})
      if (stream->fd.is_open() && stream->to->has_room())
        watch(stream->fd.get(), POLLIN, [this, stream] { read_some(*stream); });
  for (OutputQueue* queue : {&out_, &err_}) {
    const OutputQueue& other = queue == &out_ ? err_ : out_;
    if (!queue->is_empty() && !(shared_output_ && other.is_within_line()))
      watch(queue->fd(), POLLOUT, [queue] { queue->write_some(); });
  }
  const auto wait = (stopping_ ? kill_at_ : stop_at_) - Clock::now();
  const std::int64_t most = is_waiting_for_the_last() ? stopped_.interval().count() : 60'000;
  const auto wait_ms = std::chrono::ceil<milliseconds>(wait).count();
  ::poll(polls.data(), polls.size(), static_cast<int>(std::clamp<std::int64_t>(wait_ms, 0, most)));
  for (std::size_t i = 0; i < polls.size(); ++i)
    if (polls[i].revents != 0) actions[i]();
}

void Supervision::read_control() {
  char signal = 0;
  const ssize_t got = ::read(control_, &signal, 1);
  if (got < 0) return;
  if (got == 0) launcher_lives_ = false;  // Nobody waits for us: leave nothing behind, quickly.
  if (got > 0 && signal != SIGUSR1 && interrupted_by_ == 0) interrupted_by_ = signal;
  if (!has_children_ || !launcher_lives_) {
    out_.close();
    err_.close();
  }
  if (!has_children_) return;
  if (launcher_lives_ && signal == SIGUSR1) return pass_on(signal);
  if (stopping_ || !launcher_lives_) return kill_all();
  user_signal_ = signal;
  say(fmt::format("{}: stopping {} rank{}; once more kills at once", signal_name(signal), num_ranks(),
                  num_ranks() == 1 ? "" : "s"));
  stop(signal, options_.save_grace);
}

/// To the ranks that wait for it.
void Supervision::pass_on(int signal) const {
  for (const auto& rank : ranks_)
    if (!rank->status && catches(rank->pid, signal)) ::kill(rank->pid, signal);
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
    Rank& rank = **found;
    rank.status = status;
    drain(rank.out);
    drain(rank.err);
    if (!has_failed(status) || stopping_) continue;
    failures_.push_back(&rank);
    stop_at_ = std::min(stop_at_, Clock::now() + patience_after(rank));
  }
  if (all_ranks_ended()) stop_at_ = std::min(stop_at_, Clock::now() + kLinger);
  if (pid < 0 && errno == ECHILD) has_children_ = false;
}

/// How long its peers may go on: each may be about to tell the reason, or what it was doing; and after a signal all of
/// them end by themselves.
milliseconds Supervision::patience_after(const Rank& failed) const {
  return was_stopped(*failed.status) ? options_.grace : options_.blame_window;
}

/// Returns whether there may be more to read right now.
bool Supervision::read_some(Stream& stream) {
  if (!stream.fd.is_open()) return false;
  if (stream.to->is_closed()) {
    stream.fd.reset();  // Nobody reads our output, so the rank learns that nobody reads its own (SIGPIPE).
    return false;
  }
  const ssize_t got = ::read(stream.fd.get(), buffer_.data(), buffer_.size());
  if (got > 0) {
    stream.to->append(stream.lines.feed(std::string_view(buffer_.data(), static_cast<std::size_t>(got))));
    return true;
  }
  if (got == 0 || (errno != EAGAIN && errno != EINTR)) finish(stream);
  return false;
}

/// What an ended rank has written is in its pipe; a child of it may go on writing, so not without a limit.
void Supervision::drain(Stream& stream) {
  for (int pieces = 0; pieces < 16 && read_some(stream); ++pieces) {}
}

void Supervision::finish(Stream& stream) {
  stream.to->append(stream.lines.finish());
  stream.fd.reset();
}

const Rank* Supervision::to_blame() const {
  const auto own = std::find_if(failures_.begin(), failures_.end(), [](const Rank* r) { return !blames_a_peer(*r); });
  if (own != failures_.end()) return *own;
  return failures_.empty() ? nullptr : failures_.front();
}

/// The rank to blame, and those that were killed at the same time: they cannot say anything themselves.
std::string Supervision::describe_failures() const {
  constexpr std::size_t kMostNamed = 8;
  const Rank* culprit = to_blame();
  std::string text = describe_end(*culprit);
  std::size_t named = 1, others = 0;
  for (const Rank* rank : failures_) {
    if (rank == culprit || WIFEXITED(*rank->status)) continue;
    if (++named <= kMostNamed) text += "; " + describe_end(*rank);
    else ++others;
  }
  return others == 0 ? text : fmt::format("{}; and {} more", text, others);
}

bool Supervision::is_waiting_for_the_last() const {
  const auto has_ended = [](const auto& rank) { return rank->status.has_value(); };
  return !stopping_ && std::ranges::any_of(ranks_, has_ended) && !std::ranges::all_of(ranks_, has_ended);
}

/// Peers that wait for a rank give it up when it is frozen; but these have ended.
void Supervision::kill_frozen() {
  if (!is_waiting_for_the_last()) return;
  std::vector<pid_t> groups;
  for (const auto& rank : ranks_)
    if (!rank->status) groups.push_back(rank->pid);
  if (stopped_.of(groups) < options_.frozen_after) return;
  for (const auto& rank : ranks_) {
    if (rank->status || rank->was_frozen) continue;
    say(fmt::format("rank {} has been stopped for {:.3g} s, and the others have ended: killing it", rank->rank,
                    std::chrono::duration<double>(options_.frozen_after).count()));
    rank->was_frozen = true;
    ::kill(-rank->pid, SIGKILL);
  }
}

/// Decides, after every event, whether it is time to stop or to kill what still runs.
void Supervision::advance() {
  if (!has_children_) return;
  if (!stopping_ && Clock::now() >= stop_at_) {
    say(all_ranks_ended() ? "all ranks have ended; stopping the processes that they left behind"
                          : fmt::format("{}; stopping the other ranks", describe_failures()));
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
  // Those that are in no rank's group: orphans of ended ranks, and what made itself independent.
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

void Supervision::flush(OutputQueue& queue) {
  while (!queue.is_empty()) wait_for_events();
}

int Supervision::status_after_signal() const {
  int status = kDone;
  for (const auto& rank : ranks_) {
    if (has_failed(*rank->status) && !was_stopped(*rank->status)) return 128 + user_signal_;
    status = std::max(status, WEXITSTATUS(*rank->status));
  }
  return status == kDone ? 128 + user_signal_ : status;
}

/// Prints why it ended, after everything else; returns the status for the shell.
int Supervision::report() {
  flush(out_);
  if (out_.error() != 0 && out_.error() != EPIPE) say(fmt::format("cannot write: {}", std::strerror(out_.error())));
  if (user_signal_ != 0) {
    say(fmt::format("stopped by {}", signal_name(user_signal_)));
    flush(err_);
    return status_after_signal();
  }
  const Rank* culprit = to_blame();
  if (culprit && num_ranks() == 1) say(describe_end(*culprit));
  if (culprit && num_ranks() > 1) {
    const auto& tail = culprit->err.lines.tail();
    const std::string failures = describe_failures();
    const std::string who = failures == describe_end(*culprit) ? "it" : fmt::format("rank {}", culprit->rank);
    say(tail.empty() ? fmt::format("{}{} wrote nothing to stderr", failures, who == "it" ? " and" : "; " + who)
                     : fmt::format("{}; the end of what {} wrote to stderr:", failures, who));
    for (const std::string& line : tail) err_.append("  " + line + "\n");
  }
  flush(err_);
  return culprit ? shell_status(*culprit->status) : 0;
}

/// Of ranks that ended because of a peer nothing is said of themselves.
std::optional<StartFailure> Supervision::failure() const {
  const Rank* culprit = to_blame();
  if (!culprit || interrupted_by_ != 0 || !launcher_lives_ || is_meant(*culprit->status)) return std::nullopt;
  const bool has_no_reader =
      out_.is_closed() || err_.is_closed() || (WIFSIGNALED(*culprit->status) && WTERMSIG(*culprit->status) == SIGPIPE);
  if (has_no_reader) return std::nullopt;  // nor would another start
  StartFailure failure{.what = describe_failures(), .slots = {}};
  for (const Rank* rank : failures_)
    if (!blames_a_peer(*rank) && !rank->was_frozen) failure.slots.push_back(rank->slot);
  if (num_ranks() > 1 && failure.slots.size() == ranks_.size()) failure.slots.clear();  // a fault of no rank
  return failure;
}

void say_on_error_stream(const std::string& text) {
  const std::string line = fmt::format("sherd run: {}\n", text);
  [[maybe_unused]] const ssize_t written = ::write(2, line.data(), line.size());
}

Outcome Supervision::run() {
  for (int rank = 0; rank < num_ranks(); ++rank) start_rank(rank);
  while (has_children_) {
    wait_for_events();
    advance();
  }
  for (const auto& rank : ranks_)
    for (Stream* stream : {&rank->out, &rank->err}) {
      drain(*stream);
      if (stream->fd.is_open()) finish(*stream);
    }
  Outcome outcome;
  outcome.status = report();  // where the user may interrupt us yet
  outcome.failure = failure();
  // A failure that would have been mended, had the user not wanted the end since.
  if (options_.restart.restarts > 0 && outcome.status != kDone && user_signal_ == 0 && interrupted_by_ != 0) {
    say_on_error_stream(fmt::format("stopped by {}", signal_name(interrupted_by_)));
    outcome.status = 128 + interrupted_by_;
  }
  return outcome;
}

/// Returns the signal of the user that came meanwhile, 0 if none did, -1 if the launcher is dead.
int pause_for(milliseconds time, int control) {
  for (const auto until = Clock::now() + time;;) {
    pollfd poll{control, POLLIN, 0};
    const auto left = std::chrono::ceil<milliseconds>(until - Clock::now()).count();
    ::poll(&poll, 1, static_cast<int>(std::clamp<std::int64_t>(left, 0, 60'000)));
    char signal = 0;
    const ssize_t got = ::read(control, &signal, 1);
    if (got == 0) return -1;
    if (got == 1 && signal != SIGUSR1) return signal;
    if (Clock::now() >= until) return 0;
  }
}

int run_starts(const SuperviseOptions& options, const sigset_t& mask, int control) {
  RestartPolicy policy(options.ranks, options.restart);
  for (Start start{random_hex(16), policy.slots(), 0};; ++start.restart) {
    const auto begin = Clock::now();
    const Outcome outcome = Supervision(options, start, mask, control).run();
    if (!outcome.failure || options.restart.restarts == 0) {
      if (start.restart > 0 && outcome.status == kDone)
        say_on_error_stream(fmt::format("done, after {} restart{}", start.restart, start.restart == 1 ? "" : "s"));
      return outcome.status;
    }
    const std::optional<NextStart> next =
        policy.after(*outcome.failure, std::chrono::duration_cast<milliseconds>(Clock::now() - begin));
    if (!next) {
      say_on_error_stream(fmt::format("no restart is left of {}", options.restart.restarts));
      return outcome.status;
    }
    say_on_error_stream(fmt::format(
        "restart {} of {}{}, {}", start.restart + 1, options.restart.restarts,
        next->pause.count() == 0 ? "" : fmt::format(" in {} s", std::chrono::duration<double>(next->pause).count()),
        next->text));
    if (const int signal = pause_for(next->pause, control); signal != 0) {
      if (signal > 0) say_on_error_stream(fmt::format("stopped by {}", signal_name(signal)));
      return signal > 0 ? 128 + signal : outcome.status;
    }
    start.slots = policy.slots();
  }
}

}  // namespace

int supervise(const SuperviseOptions& options) {
  check(options.ranks >= 1, "there must be at least 1 rank, not {}", options.ranks);
  check(!options.command.empty(), "there is no command to run");
  check_restarts(options.ranks, options.restart);
  sigset_t mask;
  ::pthread_sigmask(SIG_BLOCK, nullptr, &mask);
  return run_guarded([&](int control) { return run_starts(options, mask, control); });
}

}  // namespace sherd
