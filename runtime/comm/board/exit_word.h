#pragma once
// The last word of a process that ends by itself: its boards tell the peers with which status, and after which step, so
// that a rank that is done is not taken for one that died.
namespace sherd::comm {

class Board;

/// A board whose process tells its end, from construction to destruction.
class ExitWord {
 public:
  explicit ExitWord(const Board& board);
  ~ExitWord();
  ExitWord(const ExitWord&) = delete;
  ExitWord& operator=(const ExitWord&) = delete;

 private:
  const Board& board_;
};

}  // namespace sherd::comm
