#include "tests/support/program.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <thread>

#include "runtime/tensor/error.h"

namespace sherd::testing {

namespace {

using Clock = std::chrono::steady_clock;

// Between fork and exec only calls that are safe in a child of a program with threads.
[[noreturn]] void become_program(char* const* words, char* const* variables, int out, int err) {
  ::setpgid(0, 0);
  const int nothing = ::open("/dev/null", O_RDONLY);
  ::dup2(nothing, STDIN_FILENO);
  ::dup2(out, STDOUT_FILENO);
  ::dup2(err, STDERR_FILENO);
  ::execvpe(words[0], words, variables);
  ::_exit(127);
}

std::vector<char*> pointers(const std::vector<std::string>& texts) {
  std::vector<char*> result;
  for (const std::string& text : texts) result.push_back(const_cast<char*>(text.c_str()));  // exec does not write
  result.push_back(nullptr);
  return result;
}

std::vector<std::string> merged(const std::vector<std::string>& changes) {
  std::vector<std::string> result = changes;
  for (char** entry = environ; *entry; ++entry) {
    const std::string text = *entry;
    const std::string name = text.substr(0, text.find('=') + 1);
    bool replaced = false;
    for (const std::string& change : changes) replaced = replaced || change.starts_with(name);
    if (!replaced) result.push_back(text);
  }
  return result;
}

// Reads until both pipes are closed or the time is up; false in the latter case.
bool read_all(std::array<int, 2> pipes, std::array<std::string*, 2> texts, Clock::time_point until) {
  std::array<pollfd, 2> open = {pollfd{pipes[0], POLLIN, 0}, pollfd{pipes[1], POLLIN, 0}};
  std::array<char, 4096> buffer;
  while (open[0].fd >= 0 || open[1].fd >= 0) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - Clock::now()).count();
    if (left <= 0) return false;
    if (::poll(open.data(), open.size(), static_cast<int>(left)) < 0 && errno != EINTR) return false;
    for (std::size_t i = 0; i < open.size(); ++i) {
      if (open[i].fd < 0 || open[i].revents == 0) continue;
      const ssize_t got = ::read(open[i].fd, buffer.data(), buffer.size());
      if (got > 0) texts[i]->append(buffer.data(), static_cast<std::size_t>(got));
      else if (got == 0 || errno != EINTR) open[i].fd = -1;
    }
  }
  return true;
}

}  // namespace

ProgramEnd run_program(const std::vector<std::string>& command, const std::vector<std::string>& environment,
                       std::chrono::seconds limit) {
  const std::vector<std::string> variables = merged(environment);
  const std::vector<char*> words = pointers(command), variable_words = pointers(variables);
  std::array<int, 2> out{}, err{};
  const bool made = ::pipe2(out.data(), O_CLOEXEC) == 0 && ::pipe2(err.data(), O_CLOEXEC) == 0;
  check(made, "pipe: {}", std::strerror(errno));
  const pid_t child = ::fork();
  check(child >= 0, "cannot fork: {}", std::strerror(errno));
  if (child == 0) become_program(words.data(), variable_words.data(), out[1], err[1]);
  ::setpgid(child, child);  // also here: whoever comes first
  ::close(out[1]);
  ::close(err[1]);

  ProgramEnd end;
  end.timed_out = !read_all({out[0], err[0]}, {&end.out, &end.err}, Clock::now() + limit);
  if (end.timed_out) ::kill(-child, SIGKILL);
  int state = 0;
  while (::waitpid(child, &state, 0) < 0 && errno == EINTR) continue;
  ::kill(-child, SIGKILL);
  ::close(out[0]);
  ::close(err[0]);
  end.status = WIFEXITED(state) ? WEXITSTATUS(state) : 128 + WTERMSIG(state);
  return end;
}

}  // namespace sherd::testing
