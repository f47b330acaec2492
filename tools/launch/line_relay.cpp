#include "tools/launch/line_relay.h"

#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

namespace sherd {
namespace {

constexpr std::size_t kLongestLine = std::size_t{1} << 20;
constexpr std::size_t kLongestTailLine = 4096;
constexpr std::size_t kRoom = std::size_t{1} << 20;

}  // namespace

RankLines::RankLines(std::string prefix, bool terminal, std::size_t tail_lines)
    : prefix_(std::move(prefix)), terminal_(terminal), tail_lines_(tail_lines) {}

/// On a terminal a progress line may stand where we write: return to the left margin and erase it.
std::string RankLines::paint(std::string_view text) const {
  return (terminal_ ? "\r\x1b[K" : "") + prefix_ + std::string(text);
}

std::string RankLines::end_line() {
  const std::string text = std::exchange(line_.empty() ? progress_ : line_, {});
  line_.clear();
  progress_.clear();
  is_progress_ = false;
  if (tail_lines_ > 0) {
    tail_.push_back(text.substr(0, kLongestTailLine));
    if (tail_.size() > tail_lines_) tail_.pop_front();
  }
  return paint(text) + '\n';
}

std::string RankLines::feed(std::string_view bytes) {
  std::string out;
  bool repaint = false;
  while (!bytes.empty()) {
    const std::size_t room = std::min(bytes.size(), kLongestLine - line_.size());
    const std::size_t end = std::min(bytes.substr(0, room).find_first_of("\r\n"), room);
    line_.append(bytes.substr(0, end));
    bytes.remove_prefix(end);
    repaint = is_progress_;
    if (line_.size() == kLongestLine) {
      out += end_line();
      repaint = false;
    } else if (!bytes.empty()) {
      const char terminator = bytes.front();
      bytes.remove_prefix(1);
      if (terminator == '\n') {
        out += end_line();
        repaint = false;
      } else {
        if (!line_.empty()) progress_ = std::exchange(line_, {});
        is_progress_ = repaint = true;
      }
    }
  }
  const std::string& shown = line_.empty() ? progress_ : line_;
  if (terminal_ && repaint && !shown.empty()) out += paint(shown);
  return out;
}

std::string RankLines::finish() { return line_.empty() && progress_.empty() ? std::string() : end_line(); }

OutputQueue::OutputQueue(int fd) : fd_(fd) {
  // A writable pipe or terminal takes PIPE_BUF bytes without blocking; a file takes all.
  struct stat status{};
  const bool regular = ::fstat(fd, &status) == 0 && S_ISREG(status.st_mode);
  piece_ = regular ? kRoom : PIPE_BUF;
}

void OutputQueue::append(std::string_view bytes) {
  if (!closed_) pending_ += bytes;
}

void OutputQueue::write_some() {
  std::string_view piece = std::string_view(pending_).substr(begin_, piece_);
  if (const std::size_t end = piece.rfind('\n'); end != piece.npos) piece = piece.substr(0, end + 1);
  if (piece.empty()) return;
  const ssize_t written = ::write(fd_, piece.data(), piece.size());
  if (written < 0) {
    if (errno == EAGAIN || errno == EINTR) return;
    error_ = errno;
    return close();
  }
  within_line_ = written > 0 ? piece[static_cast<std::size_t>(written) - 1] != '\n' : within_line_;
  begin_ += static_cast<std::size_t>(written);
  if (begin_ < pending_.size() / 2) return;  // so that each byte is moved once at most
  pending_.erase(0, begin_);
  begin_ = 0;
}

void OutputQueue::close() {
  closed_ = true;
  pending_.clear();
  begin_ = 0;
}

bool OutputQueue::has_room() const { return pending_.size() - begin_ < kRoom; }

namespace {

bool same_file(int a, int b) {
  struct stat first{}, second{};
  return ::fstat(a, &first) == 0 && ::fstat(b, &second) == 0 && first.st_dev == second.st_dev &&
         first.st_ino == second.st_ino;
}

}  // namespace

OutputRelay::OutputRelay() : is_one_file_(same_file(1, 2)) {}

bool OutputRelay::read_some(RankStream& stream) {
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

void OutputRelay::drain(RankStream& stream) {
  for (int pieces = 0; pieces < 16 && read_some(stream); ++pieces) {}
}

void OutputRelay::end(RankStream& stream) {
  drain(stream);
  if (stream.fd.is_open()) finish(stream);
}

void OutputRelay::finish(RankStream& stream) {
  stream.to->append(stream.lines.finish());
  stream.fd.reset();
}

bool OutputRelay::wants_to_write(const OutputQueue& queue) const {
  const OutputQueue& other = &queue == &out ? err : out;
  return !queue.is_empty() && !(is_one_file_ && other.is_within_line());
}

}  // namespace sherd
