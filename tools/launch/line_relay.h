#pragma once
// How the output of many ranks becomes one readable stream: whole lines, each with its rank in front.
#include <cstddef>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "runtime/os/descriptor.h"

namespace sherd {

/// Cuts one stream of one rank into lines and puts the prefix in front. A carriage return ends a progress line that
/// the next text replaces: a terminal sees each one, overwritten in place; a file sees what remains in the end. A
/// line over 1 MiB is cut. No input or output happens here.
class RankLines {
 public:
  /// `tail_lines`: how many of the last lines to remember.
  RankLines(std::string prefix, bool terminal, std::size_t tail_lines);

  /// What to print, now that the rank has written `bytes`.
  std::string feed(std::string_view bytes);
  /// What to print when the rank writes no more: a last line without its end.
  std::string finish();
  /// The last complete lines, oldest first, without prefix.
  const std::deque<std::string>& tail() const { return tail_; }

 private:
  std::string end_line();
  std::string paint(std::string_view text) const;

  const std::string prefix_;
  const bool terminal_;
  const std::size_t tail_lines_;
  std::string line_;      // since the last line end or carriage return
  std::string progress_;  // what stood before that carriage return
  bool is_progress_ = false;
  std::deque<std::string> tail_;
};

/// Bytes on their way to a descriptor that may take them slowly. Never blocks: the owner polls the descriptor and
/// calls write_some() when it is writable. Pieces end at line ends where they can, so that two queues for one
/// terminal do not cut each other's lines.
class OutputQueue {
 public:
  explicit OutputQueue(int fd);

  void append(std::string_view bytes);
  /// Writes one piece. What fails (no reader any more, disk full) closes the queue.
  void write_some();
  /// Drops what is waiting and what comes.
  void close();

  int fd() const { return fd_; }
  bool is_empty() const { return begin_ == pending_.size(); }
  bool is_closed() const { return closed_; }
  /// errno of the write that closed the queue, or 0.
  int error() const { return error_; }
  /// Whether more should be read on its behalf.
  bool has_room() const;
  /// Whether part of a line has been written and its rest waits.
  bool is_within_line() const { return within_line_ && !is_empty(); }

 private:
  const int fd_;
  std::size_t piece_;
  std::string pending_;  // from begin_ on
  std::size_t begin_ = 0;
  bool within_line_ = false;
  bool closed_ = false;
  int error_ = 0;
};

/// One stream of a rank, and where it goes.
struct RankStream {
  Descriptor fd;  ///< closed: at its end, or the rank writes to our own descriptor
  RankLines lines;
  OutputQueue* to;
};

/// What ranks write, on its way to this process's own output. Never blocks.
class OutputRelay {
 public:
  OutputRelay();

  /// Returns whether there may be more to read right now.
  bool read_some(RankStream& stream);
  /// What an ended rank has written is in its pipe; a child of it may go on writing, so not without a limit.
  void drain(RankStream& stream);
  /// Drains it, and reads no more.
  void end(RankStream& stream);
  /// "sherd run: " and the text, on a line of its own.
  void say(std::string_view text) { err.append(fmt::format("sherd run: {}\n", text)); }
  /// Drops what is waiting and what comes.
  void close() {
    out.close();
    err.close();
  }
  /// Whether the queue has something to write, and would not cut a line of the other one.
  bool wants_to_write(const OutputQueue& queue) const;

  OutputQueue out{1}, err{2};

 private:
  void finish(RankStream& stream);

  std::vector<char> buffer_ = std::vector<char>(65536);
  const bool is_one_file_;
};

}  // namespace sherd
