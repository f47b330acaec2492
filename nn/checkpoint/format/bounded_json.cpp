// nlohmann's parser as a stream of events. Those of a large container are told apart by a stack of open ones; anything
// else is built as a value and handed over when it is complete.
#include "nn/checkpoint/format/bounded_json.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <utility>

#include "runtime/tensor/error.h"

namespace sherd::ckpt {

namespace {

using nlohmann::json;
using Kind = JsonMembers::Kind;

constexpr std::size_t kMaxDepth = 16;  // printing and comparing recurse
constexpr std::size_t kMaxValues = 100'000;
constexpr std::size_t kMaxString = std::size_t{2} << 20;  // bytes; the parser and messages copy one many times

class Events : public json::json_sax_t {
 public:
  explicit Events(const JsonMembers& document) { open_.push_back({&document, {}}); }

  bool null() override { return add(nullptr); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(std::int64_t value) override { return add(value); }
  bool number_unsigned(std::uint64_t value) override { return add(value); }
  bool number_float(double value, const std::string&) override { return add(value); }
  bool string(std::string& value) override { return add(std::as_const(value)); }  // a copy has no spare capacity
  bool binary(json::binary_t&) override { return false; }                         // is no part of JSON as text
  bool start_object(std::size_t) override { return start(Kind::object); }
  bool start_array(std::size_t) override { return start(Kind::array); }
  bool key(std::string& name) override {
    name_ = name;
    return true;
  }
  bool end_object() override { return end(); }
  bool end_array() override { return end(); }
  bool parse_error(std::size_t, const std::string&, const json::exception& error) override {
    fail("it is not valid JSON: {}", error.what());
  }

 private:
  struct Open {
    const JsonMembers* container;
    std::vector<const JsonMembers*> seen;  // of its large members
  };

  bool start(Kind kind) {
    check(open_.size() - 1 + building_.size() < kMaxDepth, "it nests deeper than {} levels", kMaxDepth);
    json empty = kind == Kind::object ? json::object() : json::array();
    if (!building_.empty()) {
      building_.push_back(&insert(std::move(empty)));
    } else if (const JsonMembers* large = find_large()) {
      if (large->kind != kind) refuse_kind(*large);
      auto& seen = open_.back().seen;
      check(std::find(seen.begin(), seen.end(), large) == seen.end(), "the name \"{}\" stands twice", name_);
      seen.push_back(large);
      open_.push_back({large, {}});
      name_.clear();
    } else {
      member_name_ = name_;
      member_ = std::move(empty);
      num_values_ = 0;
      building_.push_back(&member_);
    }
    return true;
  }

  bool end() {
    if (!building_.empty()) {
      building_.pop_back();
      if (building_.empty()) hand_over(member_name_, member_);
      return true;
    }
    const auto [container, seen] = std::move(open_.back());
    open_.pop_back();
    for (const JsonMembers& large : container->large)
      check(!large.required || std::find(seen.begin(), seen.end(), &large) != seen.end(), "it has no {} \"{}\"",
            large.kind == Kind::object ? "object" : "array", large.name);
    return true;
  }

  bool add(json value) {
    if (!building_.empty()) {
      insert(std::move(value));
      return true;
    }
    if (const JsonMembers* large = find_large()) refuse_kind(*large);
    hand_over(name_, value);
    return true;
  }

  json& insert(json value) {
    check(++num_values_ <= kMaxValues, "one of its values holds more than {} others", kMaxValues);
    json& parent = *building_.back();
    if (parent.is_array()) return parent.emplace_back(std::move(value));
    const auto [at, is_new] = parent.emplace(name_, std::move(value));
    check(is_new, "the name \"{}\" stands twice", name_);
    return *at;
  }

  void hand_over(const std::string& name, json& value) {
    const JsonMembers& container = *open_.back().container;
    if (container.each) container.each(container.kind == Kind::array ? std::string() : name, value);
  }

  const JsonMembers* find_large() const {
    for (const JsonMembers& large : open_.back().container->large)
      if (large.name == name_) return &large;
    return nullptr;
  }

  [[noreturn]] static void refuse_kind(const JsonMembers& large) {
    const char* kind = large.kind == Kind::object ? "object" : "array";
    if (large.name.empty()) fail("it is not a JSON {}", kind);
    fail("\"{}\" is not an {}", large.name, kind);
  }

  std::vector<Open> open_;  // large containers, the document itself first
  std::string name_;        // the last one read
  json member_;             // what is being built, and its name
  std::string member_name_;
  std::vector<json*> building_;  // containers in it that are open
  std::size_t num_values_ = 0;   // in it
};

/// The characters of `text`. The parser takes NUL for the end of its input; here it is an error, as is a string that
/// is too long.
class Characters {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = char;
  using traits = std::char_traits<char>;

  Characters() = default;  // the end
  explicit Characters(std::streambuf& text) : text_(&text), next_(checked(text.sgetc())) {}
  char operator*() const { return traits::to_char_type(next_); }
  Characters& operator++() {
    measure_string();
    next_ = checked(text_->snextc());
    return *this;
  }
  bool operator!=(const Characters& other) const { return next_ != other.next_; }

 private:
  static int checked(int next) {
    check(next != 0, "it is not valid JSON: it holds a NUL byte");
    return next;
  }

  // Before the next character: what the current one means for the string that is open, if one is.
  void measure_string() {
    if (next_ == '"' && !is_escaped_) in_string_ = !in_string_;
    is_escaped_ = in_string_ && next_ == '\\' && !is_escaped_;
    length_ = in_string_ ? length_ + 1 : 0;
    check(length_ <= kMaxString, "one of its strings has more than {} bytes", kMaxString);
  }

  std::streambuf* text_ = nullptr;
  int next_ = traits::eof();
  bool in_string_ = false, is_escaped_ = false;
  std::size_t length_ = 0;  // of the string so far
};

void read_document(std::streambuf& text, const JsonMembers& document) {
  check(text.sgetc() != 0xEF, "it is not valid JSON: it begins with a byte order mark");
  Events events(document);
  json::sax_parse(Characters(text), Characters(), &events);
}

}  // namespace

TextBuffer::TextBuffer(std::string_view text) {
  char* begin = const_cast<char*>(text.data());  // NOLINT: streambuf asks for it, reading does not write
  setg(begin, begin, begin + text.size());
}

void read_json(std::streambuf& text, const JsonMembers& outermost) {
  JsonMembers document;
  document.large = {outermost};
  document.large[0].name.clear();
  read_document(text, document);
}

void read_json(std::string_view text, const JsonMembers& outermost) {
  TextBuffer buffer(text);
  read_json(buffer, outermost);
}

nlohmann::json parse_bounded_json(std::string_view text) {
  json whole;
  JsonMembers document;
  document.each = [&](const std::string&, json& value) { whole = std::move(value); };
  TextBuffer buffer(text);
  read_document(buffer, document);
  return whole;
}

std::string shown(const json& value) {
  constexpr std::size_t kMaxBytes = 100;
  std::string text = value.dump(-1, ' ', true);  // ASCII, so that it can be truncated anywhere
  if (text.size() > kMaxBytes) text = text.substr(0, kMaxBytes) + "...";
  return text;
}

}  // namespace sherd::ckpt
