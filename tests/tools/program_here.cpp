#include "tests/tools/program_here.h"

#include <csignal>
#include <cstdio>
#include <cstdlib>

#include <unistd.h>

#include "runtime/exec/context.h"
#include "runtime/tensor/error.h"
#include "tools/cli/command.h"
#include "tools/cli/commands.h"
#include "tools/cli/program.h"

namespace sherd::testing {

using namespace train;

namespace {

// Before any test, and for all programs that tests start: what somebody has calibrated here changes none of them.
const bool kHasNoCache = ::setenv("SHERD_CACHE", "", /*overwrite=*/1) == 0;

/// What is written to a stream while one lives goes into a nameless file.
class CaughtStream {
 public:
  explicit CaughtStream(std::FILE* stream) : stream_(stream), file_(std::tmpfile()) {
    check(file_ != nullptr, "no temporary file to catch output in");
    std::fflush(stream_);
    saved_ = ::dup(::fileno(stream_));
    ::dup2(::fileno(file_), ::fileno(stream_));
  }
  ~CaughtStream() {
    std::fflush(stream_);
    ::dup2(saved_, ::fileno(stream_));
    ::close(saved_);
    std::fclose(file_);
  }
  CaughtStream(const CaughtStream&) = delete;
  CaughtStream& operator=(const CaughtStream&) = delete;
  std::string text() const {
    std::fflush(stream_);
    std::string text(static_cast<std::size_t>(::lseek(::fileno(file_), 0, SEEK_END)), '\0');
    const auto got = ::pread(::fileno(file_), text.data(), text.size(), 0);
    text.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
    return text;
  }

 private:
  std::FILE* stream_;
  std::FILE* file_;
  int saved_ = -1;
};

/// run_command(), but what `sherd` would go on as another program for is called here.
int run_here(std::span<const std::string_view> args) {
  if (!args.empty() && args[0] == "bench") return run_bench(args.subspan(1));
  if (!args.empty() && args[0] == "walk") return run_walk(args.subspan(1));
  if (args.size() == 2 && args[0] == "help" && (args[1] == "bench" || args[1] == "walk")) {
    const std::string_view own[] = {args[1], "--help"};
    return run_here(own);
  }
  return run_command(args);
}

class KeptSignal {
 public:
  explicit KeptSignal(int signal) : signal_(signal) { ::sigaction(signal_, nullptr, &before_); }
  ~KeptSignal() { ::sigaction(signal_, &before_, nullptr); }
  KeptSignal(const KeptSignal&) = delete;
  KeptSignal& operator=(const KeptSignal&) = delete;

 private:
  int signal_;
  struct sigaction before_{};
};

}  // namespace

ProgramEnd sherd_here(const std::vector<std::string>& words) {
  const KeptSignal save(SIGUSR1), pipe(SIGPIPE);
  const CaughtStream out(stdout), err(stderr);
  ProgramEnd end;
  {
    RankScope scope;  // a world of its own
    end.status = run_printing_errors(std::vector<std::string_view>(words.begin(), words.end()), run_here);
  }
  end.out = out.text();
  end.err = err.text();
  return end;
}

}  // namespace sherd::testing
