#include "tools/bench/side.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>

#include "runtime/tensor/error.h"

namespace sherd::bench {

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr std::size_t kKeptErrors = 4096, kLongestLine = std::size_t{1} << 20;
constexpr milliseconds kGoodbye{3'000}, kTermination{2'000};

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : " ") + word;
  return text;
}

// Whether the process has ended within the limit; it stays to be reaped.
bool ends_within(pid_t pid, milliseconds limit) {
  const Descriptor handle(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  if (!handle.is_open()) return true;
  pollfd end{handle.get(), POLLIN, 0};
  return ::poll(&end, 1, static_cast<int>(limit.count())) > 0;
}

std::string short_quote(std::string_view text) {
  return text.size() > 100 ? fmt::format("\"{}...\"", text.substr(0, 100)) : fmt::format("\"{}\"", text);
}

}  // namespace

std::vector<std::string> clean_environment(const std::vector<std::string>& added) {
  std::vector<std::string_view> left_out{"OPENBLAS_", "OMP_", "MKL_", "ATEN_", "DNNL_"};
  for (const std::string_view entry : added) left_out.push_back(entry.substr(0, entry.find('=') + 1));
  std::vector<std::string> result = environment_without(left_out);
  result.insert(result.begin(), added.begin(), added.end());
  return result;
}

Side::Side(SideCommand command, milliseconds patience) : command_(std::move(command)), patience_(patience) {
  Pipe in = make_pipe(), out = make_pipe(), err = make_pipe();
  SpawnPlan plan{.command = command_.words, .environment = clean_environment(command_.environment)};
  plan.in = in.read.get(), plan.out = out.write.get(), plan.err = err.write.get();
  ::sigemptyset(&plan.mask);
  pid_ = spawn(plan);
  in_ = std::move(in.write), out_ = std::move(out.read), err_ = std::move(err.read);
  in.read.reset(), out.write.reset(), err.write.reset();  // or the program's end would not show
  try {
    greeting_ = read_object();
  } catch (...) {
    if (pid_ > 0) stop(milliseconds(0));
    throw;
  }
}

Side::~Side() {
  if (pid_ > 0) stop(has_failed_ ? milliseconds(0) : kGoodbye);
}

nlohmann::json Side::ask(std::string_view request) {
  const std::string line = fmt::format("{}\n", request);
  // SIGPIPE is ignored by the caller: an ended program shows as EPIPE here and is reported with its last words.
  if (::write(in_.get(), line.data(), line.size()) != static_cast<ssize_t>(line.size())) fail_ended();
  nlohmann::json answer = read_object();
  if (const auto error = answer.find("error"); error != answer.end() && error->is_string())
    fail("{}: {}", joined(command_.words), error->get<std::string>());
  return answer;
}

nlohmann::json Side::read_object() {
  has_failed_ = true;  // unless this returns
  std::string line = read_line();
  if (line.starts_with("[0] ")) line.erase(0, 4);  // of rank 0 under `sherd run`
  nlohmann::json object = nlohmann::json::parse(line, nullptr, false);
  check(object.is_object(), "{} printed {} instead of a JSON object{}", joined(command_.words), short_quote(line),
        last_words());
  has_failed_ = false;
  return object;
}

// Output and errors are read together, so that neither pipe can fill up and stop the program.
std::string Side::read_line() {
  const Clock::time_point until = Clock::now() + patience_;
  std::array<char, 4096> buffer;
  for (;;) {
    if (const std::size_t end = unread_.find('\n'); end != std::string::npos) {
      std::string line = unread_.substr(0, end);
      unread_.erase(0, end + 1);
      return line;
    }
    check(unread_.size() < kLongestLine, "{} printed a line of more than {} bytes", joined(command_.words),
          kLongestLine);
    const auto left = std::chrono::duration_cast<milliseconds>(until - Clock::now()).count();
    check(left > 0, "{} did not answer within {} s{}", joined(command_.words),
          static_cast<double>(patience_.count()) / 1e3, last_words());
    std::array<pollfd, 2> open{pollfd{out_.get(), POLLIN, 0}, pollfd{err_.get(), POLLIN, 0}};
    if (::poll(open.data(), open.size(), static_cast<int>(left)) < 0) continue;
    if (open[1].revents != 0) {
      const ssize_t got = ::read(err_.get(), buffer.data(), buffer.size());
      if (got > 0) errors_.append(buffer.data(), static_cast<std::size_t>(got));
      else if (got == 0) err_.reset();
      if (errors_.size() > kKeptErrors) errors_.erase(0, errors_.size() - kKeptErrors);
    }
    if (open[0].revents != 0) {
      const ssize_t got = ::read(out_.get(), buffer.data(), buffer.size());
      if (got > 0) unread_.append(buffer.data(), static_cast<std::size_t>(got));
      else if (got == 0) fail_ended();
    }
  }
}

void Side::fail_ended() {
  if (err_.is_open()) {  // what it said at the end may still be in the pipe
    ::fcntl(err_.get(), F_SETFL, O_NONBLOCK);
    std::array<char, kKeptErrors> buffer;
    for (ssize_t got; (got = ::read(err_.get(), buffer.data(), buffer.size())) > 0;)
      errors_.append(buffer.data(), static_cast<std::size_t>(got));
  }
  const int status = stop(kGoodbye);
  const std::string how = WIFSIGNALED(status)        ? fmt::format("was killed by signal {}", WTERMSIG(status))
                          : WEXITSTATUS(status) != 0 ? fmt::format("failed with status {}", WEXITSTATUS(status))
                                                     : std::string("ended without an answer");
  fail("{} {}{}", joined(command_.words), how, last_words());
}

// An Error goes on in indented lines, which say where it happened. A launcher quotes one below a line with a colon.
std::string Side::last_words() const {
  std::string_view text = errors_, after;
  for (;;) {
    while (!text.empty() && text.back() == '\n') text.remove_suffix(1);
    if (text.empty()) return {};
    const std::size_t before = text.rfind('\n');
    const std::string_view line = before == std::string_view::npos ? text : text.substr(before + 1);
    if (line.starts_with(' ') && before != std::string_view::npos) {
      after = line;
      text = text.substr(0, before);
      continue;
    }
    const bool quotes = line.ends_with(':') && !after.empty();
    return fmt::format("; its last line on stderr: {}{}", line,
                       quotes ? after.substr(after.find_first_not_of(' ') - 1) : std::string_view());
  }
}

int Side::stop(milliseconds goodbye) {
  in_.reset();
  if (!ends_within(pid_, goodbye)) {
    ::kill(-pid_, SIGTERM);
    if (!ends_within(pid_, kTermination)) ::kill(-pid_, SIGKILL);
  }
  int status = 0;
  while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {}
  ::kill(-pid_, SIGKILL);  // what it left in its process group
  pid_ = -1;
  return status;
}

Side& Sides::get(const SideKey& key, std::chrono::milliseconds patience) {
  auto at = running_.find(key);
  if (at == running_.end()) at = running_.emplace(key, std::make_unique<Side>(key.second, patience)).first;
  return *at->second;
}

void Sides::stop_all_but(const SideKey& key) {
  std::erase_if(running_, [&](const auto& entry) { return entry.first != key; });
}

}  // namespace sherd::bench
