// Timelines as text: a line for each entry, and lines that say once what holds for those below.
//
//   sherd timeline 1
//   rank 0 of 16
//   base 0 13500000 0 0 0 0 0                        bytes by category
//   group dp#1 dp 16x1
//   at blocks.0.attn.wq forward                      module and phase from here on
//   call linear contraction bf16 5.5e+11 1.5e+08 "bf16[2,4096,4096] bf16[4096,4096]"
//   item 3 gather unshard blocks.1 dp#1 gather 405000000 after 2 uses r4,w9
//   wait 3 touch
//   memory unsharded 405000000
#include <algorithm>
#include <cmath>

#include "runtime/exec/timeline.h"
#include "runtime/tensor/error.h"
#include "runtime/tensor/indices.h"
#include "runtime/tensor/quantity.h"

namespace sherd {

namespace {

constexpr std::string_view kTimelineHead = "sherd timeline 1";
constexpr double kLargestValue = 1e18;

bool is_word_char(char c) { return c > ' ' && c < 0x7f && c != '"' && c != '\\'; }

// Quoted where it is no word.
void append_text(std::string& out, std::string_view text) {
  if (!text.empty() && text != "-" && std::ranges::all_of(text, is_word_char)) {
    out += text;
    return;
  }
  out += '"';
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += c == '\n' ? ' ' : c;
  }
  out += '"';
}

/// Reads one line after the other.
class LineReader {
 public:
  LineReader(std::string_view text, std::string_view file) : text_(text), file_(file) {}

  bool next_line() {
    if (at_ >= text_.size()) return false;
    const std::size_t end = std::min(text_.find('\n', at_), text_.size());
    line_ = text_.substr(at_, end - at_);
    at_ = end + 1;
    column_ = 0;
    ++number_;
    return true;
  }
  /// No text of so many bytes has more items.
  std::int64_t most_items() const {
    constexpr std::size_t kShortestItem = std::string_view("item 0 a b c - gather 0 after - uses -").size();
    return static_cast<std::int64_t>(text_.size() / kShortestItem);
  }
  std::string_view line() const { return line_; }
  bool at_end() const { return column_ >= line_.size(); }

  template <class... Args>
  [[noreturn]] void refuse(fmt::format_string<Args...> format, Args&&... args) const {
    fail("{}: line {}, column {}: {}", file_, number_, start_ + 1, fmt::format(format, std::forward<Args>(args)...));
  }

  /// The next word, or quoted text, of a line.
  std::string word(std::string_view what) {
    start_ = column_;
    if (at_end()) refuse("the line ends where {} is wanted", what);
    std::string out;
    if (line_[column_] != '"') {
      const std::size_t end = std::min(line_.find(' ', column_), line_.size());
      out = line_.substr(column_, end - column_);
      if (out.empty() || !std::ranges::all_of(out, is_word_char)) refuse("{} is no word", what);
      column_ = end;
    } else {
      for (++column_; !at_end() && line_[column_] != '"'; ++column_) {
        if (line_[column_] == '\\') ++column_;
        if (!at_end()) out += line_[column_];
      }
      if (at_end()) refuse("{} has no closing quote", what);
      ++column_;
    }
    if (at_end()) return out;
    if (line_[column_] != ' ') refuse("{} ends at no blank", what);
    ++column_;
    return out;
  }
  void expect(std::string_view text) {
    if (word(text) != text) refuse("expected \"{}\"", text);
  }
  void end() {
    start_ = column_;
    if (!at_end()) refuse("expected the end of the line");
  }
  double number(std::string_view what, double least = 0) {
    const std::optional<double> value = parse_number(word(what));
    if (!value || !std::isfinite(*value) || *value < least || std::abs(*value) > kLargestValue)
      refuse("{} is a number from {} to {}", what, least, kLargestValue);
    return *value;
  }
  std::int64_t integer(std::string_view what, std::int64_t least, std::int64_t most) {
    return integer_of(word(what), what, least, most);
  }
  std::int64_t integer_of(std::string_view text, std::string_view what, std::int64_t least, std::int64_t most) {
    const auto value = number_of<std::int64_t>(text);
    if (!value || *value < least || *value > most) refuse("{} is a whole number from {} to {}", what, least, most);
    return *value;
  }
  template <class E, std::size_t N>
  E named(std::string_view what, const E (&values)[N]) {
    const std::string text = word(what);
    for (const E value : values)
      if (name(value) == text) return value;
    refuse("\"{}\" is no {}", text.substr(0, 60), what);
  }

 private:
  const std::string_view text_, file_;
  std::size_t at_ = 0;
  std::string_view line_;
  std::size_t column_ = 0, start_ = 0;
  int number_ = 0;
};

constexpr auto kMostBytes = static_cast<std::int64_t>(kLargestValue);

/// A timeline as it is read.
class TimelineParser {
 public:
  TimelineParser(std::string_view text, std::string_view file) : in_(text, file) {}

  Timeline run() {
    if (!in_.next_line() || in_.line() != kTimelineHead) in_.refuse("the first line is \"{}\"", kTimelineHead);
    read_header();
    while (in_.next_line()) {
      const std::string kind = in_.word("what the line is");
      if (kind == "call") read_call();
      else if (kind == "item") read_item();
      else if (kind == "wait") read_wait();
      else if (kind == "memory") read_memory();
      else if (kind == "at") read_place();
      else if (kind == "group") read_group();
      else in_.refuse("\"{}\" is no line of a timeline", kind.substr(0, 60));
      in_.end();
    }
    for (const std::size_t i : indices(is_there_))
      if (!is_there_[i]) in_.refuse("the text ends, and there is no item {}", i);
    return std::move(out_);
  }

 private:
  Timeline::Text text(std::string_view what) { return out_.intern(in_.word(what)); }

  void read_header() {
    if (!in_.next_line()) in_.refuse("the text ends where \"rank\" is wanted");
    in_.expect("rank");
    out_.rank = static_cast<int>(in_.integer("a rank", 0, 1 << 30));
    in_.expect("of");
    out_.ranks = static_cast<int>(in_.integer("the number of ranks", out_.rank + 1, 1 << 30));
    in_.end();
    if (!in_.next_line()) in_.refuse("the text ends where \"base\" is wanted");
    in_.expect("base");
    for (std::int64_t& bytes : out_.base) bytes = in_.integer("bytes", -kMostBytes, kMostBytes);
    in_.end();
  }
  void read_group() {
    Timeline::Group group{text("the group's name"), text("its label"), {}};
    const std::string grid = in_.word("its grid");
    try {
      group.grid = RankGrid::parse(grid);
      group.grid.check_divides(out_.ranks);
    } catch (const Error& error) { in_.refuse("{}", error.message().substr(0, 200)); }
    for (const Timeline::Group& other : out_.groups)
      if (other.name == group.name) in_.refuse("the group {} comes twice", out_.text(group.name).substr(0, 60));
    if (out_.groups.size() == kMostGroups) in_.refuse("there are more than {} groups", kMostGroups);
    out_.groups.push_back(std::move(group));
  }
  void read_place() {
    module_ = text("a module");
    phase_ = in_.named("phase", kPhases);
  }
  void add(Timeline::Kind kind, std::size_t index) {
    out_.entries.push_back({kind, phase_, module_, static_cast<std::uint32_t>(index)});
  }
  void read_call() {
    Timeline::Call call{.op = text("a row")};
    const std::string kind = in_.word("a kind of work");
    call.work.kind = read(kind, work_kind_from_name);
    const std::string dtype = in_.word("a type");
    call.work.dtype = read(dtype, dtype_from_name);
    call.work.flops = in_.number("FLOPs");
    call.work.bytes = in_.number("bytes");
    call.shapes = text("shapes");
    add(Timeline::Kind::call, out_.calls.size());
    out_.calls.push_back(call);
  }
  template <class T>
  T read(const std::string& word, T (*from_name)(std::string_view)) {
    try {
      return from_name(word.substr(0, 60));
    } catch (const Error& error) { in_.refuse("{}", error.message()); }
  }
  void read_item() {
    const auto number = static_cast<std::size_t>(in_.integer("the item's number", 0, in_.most_items()));
    if (number >= is_there_.size()) {
      is_there_.resize(number + 1);
      out_.items.resize(number + 1);
    }
    if (is_there_[number]) in_.refuse("item {} comes twice", number);
    Timeline::Item item{.queue = text("a queue"), .work = text("its work"), .subject = text("its subject")};
    item.group = read_group_name();
    item.movement = in_.named("movement", kMovements);
    item.bytes = in_.number("bytes");
    in_.expect("after");
    each(in_.word("items"), [&](std::string_view other) { item.after.push_back(item_named(other)); });
    in_.expect("uses");
    each(in_.word("storages"), [&](std::string_view use) {
      if (use.empty() || (use[0] != 'r' && use[0] != 'w')) in_.refuse("a storage is rN or wN");
      item.uses.push_back(
          {static_cast<std::uint32_t>(in_.integer_of(use.substr(1), "a storage", 0, 1 << 30)), use[0] == 'w'});
    });
    is_there_[number] = true;
    add(Timeline::Kind::item, number);
    out_.items[number] = std::move(item);
  }
  std::uint32_t read_group_name() {
    const std::string name = in_.word("a group");
    if (name == "-") return Timeline::kNone;
    for (const std::size_t i : indices(out_.groups))
      if (out_.text(out_.groups[i].name) == name) return static_cast<std::uint32_t>(i);
    in_.refuse("there is no group \"{}\" before this line", name.substr(0, 60));
  }
  std::uint32_t item_named(std::string_view text) {
    const std::int64_t item = in_.integer_of(text, "an item", 0, kMostBytes);
    if (static_cast<std::size_t>(item) >= is_there_.size() || !is_there_[static_cast<std::size_t>(item)])
      in_.refuse("there is no item {} before this line", item);
    return static_cast<std::uint32_t>(item);
  }
  template <class Each>
  static void each(std::string_view list, const Each& each) {
    if (list == "-") return;
    for (;;) {
      const std::size_t comma = std::min(list.find(','), list.size());
      each(list.substr(0, comma));
      if (comma == list.size()) return;
      list.remove_prefix(comma + 1);
    }
  }
  void read_wait() {
    const std::uint32_t item = item_named(in_.word("an item"));
    out_.waits.push_back({item, in_.named("reason", kReasons)});
    add(Timeline::Kind::wait, out_.waits.size() - 1);
  }
  void read_memory() {
    const MemoryCategory category = in_.named("category of memory", kCategories);
    out_.changes.push_back({category, in_.integer("bytes", -kMostBytes, kMostBytes)});
    add(Timeline::Kind::memory, out_.changes.size() - 1);
  }

  static constexpr std::size_t kMostGroups = 1000;
  static constexpr StepPhase kPhases[] = {StepPhase::forward, StepPhase::backward, StepPhase::optimizer};
  static constexpr Movement kMovements[] = {Movement::gather, Movement::scatter, Movement::reduce_all,
                                            Movement::all_to_all};
  static constexpr Timeline::Why kReasons[] = {Timeline::Why::touch, Timeline::Why::throttle};
  static constexpr MemoryCategory kCategories[] = {
      MemoryCategory::parameters,  MemoryCategory::unsharded,     MemoryCategory::gradients, MemoryCategory::optimizer,
      MemoryCategory::activations, MemoryCategory::communication, MemoryCategory::workspace};

  LineReader in_;
  Timeline out_;
  std::vector<bool> is_there_;
  Timeline::Text module_ = 0;
  StepPhase phase_ = StepPhase::forward;
};

void append_list(std::string& out, std::string_view label, std::string list) {
  out += fmt::format(" {} {}", label, list.empty() ? "-" : list);
}

}  // namespace

std::string Timeline::print() const {
  std::string out = fmt::format("{}\nrank {} of {}\nbase", kTimelineHead, rank, ranks);
  for (const std::int64_t bytes : base) out += fmt::format(" {}", bytes);
  out += '\n';
  const auto add_text = [&](Text index) {
    out += ' ';
    append_text(out, text(index));
  };
  for (const Group& group : groups) {
    out += "group";
    add_text(group.name);
    add_text(group.label);
    out += fmt::format(" {}\n", group.grid.text());
  }
  Entry place{Kind::call, StepPhase::forward, 0, 0};
  for (const Entry& entry : entries) {
    if (entry.module != place.module || entry.phase != place.phase) {
      out += "at";
      add_text(entry.module);
      out += fmt::format(" {}\n", sherd::name(entry.phase));
      place = entry;
    }
    switch (entry.kind) {
      case Kind::call: {
        const Call& call = calls[entry.index];
        out += "call";
        add_text(call.op);
        out += fmt::format(" {} {} {} {}", sherd::name(call.work.kind), sherd::name(call.work.dtype), call.work.flops,
                           call.work.bytes);
        add_text(call.shapes);
        break;
      }
      case Kind::item: {
        const Item& item = items[entry.index];
        out += fmt::format("item {}", entry.index);
        for (const Text t : {item.queue, item.work, item.subject}) add_text(t);
        if (item.group == kNone) out += " -";
        else add_text(groups[item.group].name);
        out += fmt::format(" {} {}", sherd::name(item.movement), item.bytes);
        std::string after, uses;
        for (const std::uint32_t before : item.after) after += fmt::format("{}{}", after.empty() ? "" : ",", before);
        for (const Use& use : item.uses)
          uses += fmt::format("{}{}{}", uses.empty() ? "" : ",", use.writes ? "w" : "r", use.storage);
        append_list(out, "after", std::move(after));
        append_list(out, "uses", std::move(uses));
        break;
      }
      case Kind::wait:
        out += fmt::format("wait {} {}", waits[entry.index].item, sherd::name(waits[entry.index].why));
        break;
      case Kind::memory:
        out += fmt::format("memory {} {}", sherd::name(changes[entry.index].category), changes[entry.index].bytes);
        break;
    }
    out += '\n';
  }
  return out;
}

Timeline Timeline::parse(std::string_view text, std::string_view file) { return TimelineParser(text, file).run(); }

}  // namespace sherd
