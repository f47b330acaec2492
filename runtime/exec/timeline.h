#pragma once
// What one rank does in a step, in the order of its program and without a time: calls and what they compute, work that
// queues are given, the waits that end it, and changes of memory. A ghost rank writes it (timeline_recording.h), eager
// or captured; simulate.h plays it by prices.
//
//   call linear contraction bf16 5.5e+11 1.5e+08 "bf16[2,4096] bf16[4096,4096]" @blocks.0.attn.wq forward
//   item 3 gather unshard blocks.1 gather dp#1 405000000 after 2 reads 4 writes 9
//   wait 3 touch
//   memory unsharded +405000000
#include <array>
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "runtime/exec/context.h"
#include "runtime/exec/host_layout.h"
#include "runtime/exec/price.h"
#include "runtime/memory/accounting.h"

namespace sherd {

/// Rows are in the order of the program, and refer to texts and items by number.
struct TimelineRows {
  using Text = std::uint32_t;  ///< index of a text; 0 is ""
  static constexpr std::uint32_t kNone = ~0u;

  enum class Kind : std::uint8_t { call, item, wait, memory };
  struct Entry {
    Kind kind;
    StepPhase phase;
    Text module;          ///< path of the module that runs; 0: none
    std::uint32_t index;  ///< of calls, items, waits or changes
  };
  struct Call {
    Text op = 0, shapes = 0;
    CallWork work{};
  };
  /// A group, as this rank knows it.
  struct Group {
    Text name, label;  ///< "dp#2", "dp"
    RankGrid grid;
  };
  struct Use {
    std::uint32_t storage;  ///< numbered by first use
    bool writes;
  };
  struct Item {
    Text queue = 0, work = 0, subject = 0;  ///< "gather", "unshard", "blocks.3"
    std::uint32_t group = kNone;            ///< of groups; kNone: it moves nothing between ranks
    Movement movement = Movement::gather;
    double bytes = 0;                    ///< of the full tensors as they travel; of a copy those that are copied
    std::vector<std::uint32_t> after{};  ///< items of other queues that must be over
    std::vector<Use> uses{};
  };
  enum class Why : std::uint8_t { touch, throttle };  ///< bytes are touched or freed, or its queue is full
  struct Wait {
    std::uint32_t item;  ///< and with it all items of its queue before
    Why why;
  };
  struct Change {
    MemoryCategory category;
    std::int64_t bytes;
  };

  int rank = 0, ranks = 1;
  CategoryBytes base{};  ///< held where the timeline begins
  std::vector<Entry> entries{};
  std::vector<Call> calls{};
  std::vector<Item> items{};
  std::vector<Wait> waits{};
  std::vector<Change> changes{};
  std::vector<Group> groups{};
};
std::string_view name(TimelineRows::Why why);

/// A value. A changed order of `entries` is a timeline as well, as long as an item stands before who names it.
class Timeline : public TimelineRows {
 public:
  Timeline() = default;
  Timeline(const Timeline& other);
  Timeline(Timeline&&) = default;
  Timeline& operator=(const Timeline& other);
  Timeline& operator=(Timeline&&) = default;

  Text intern(std::string_view text);
  std::string_view text(Text index) const { return texts_[index]; }

  double flops() const;
  /// A line for each entry. parse() reads it: Error with line and column, in time and memory linear in the text, for
  /// other text, for items that do not come before what names them, and for numbers over 1e18.
  std::string print() const;
  static Timeline parse(std::string_view text, std::string_view file = "the timeline");
  /// Equal for ranks that do the same: rows, modules, queues, groups and waits count, and not what may be local to a
  /// rank, which is its number, shapes, FLOPs, bytes and memory.
  std::uint64_t hash() const;
  /// Whether both are played alike: all is equal but for the number of the rank.
  bool plays_as(const Timeline& other) const;

 private:
  std::deque<std::string> texts_{""};
  std::unordered_map<std::string_view, Text> by_text_{{"", 0}};
};

}  // namespace sherd
