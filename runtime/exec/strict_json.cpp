#include "runtime/exec/strict_json.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "runtime/tensor/nearest.h"

namespace sherd {

namespace {

constexpr int kDeepest = 16;
constexpr std::size_t kLongestText = std::size_t{4} << 20;
constexpr double kLargestNumber = 1e18;

/// One pass over the text, by recursive descent.
class JsonReader {
 public:
  JsonReader(std::string_view text, std::string_view file) : text_(text), file_(file) {}

  JsonValue whole() {
    if (text_.size() > kLongestText) refuse("the text has {} bytes; {} are read at most", text_.size(), kLongestText);
    JsonValue value = read(0);
    skip_blanks();
    if (!at_end()) refuse("there is more after the end of the value");
    return value;
  }

 private:
  template <class... Args>
  [[noreturn]] void refuse(fmt::format_string<Args...> format, Args&&... args) const {
    fail("{}: line {}, column {}: {}", file_, line_, column(), fmt::format(format, std::forward<Args>(args)...));
  }
  bool at_end() const { return at_ == text_.size(); }
  int column() const { return static_cast<int>(at_ - line_start_) + 1; }
  char peek() const { return at_end() ? '\0' : text_[at_]; }

  void skip_blanks() {
    for (; !at_end(); ++at_) {
      const char c = text_[at_];
      if (c == '\n') {
        ++line_;
        line_start_ = at_ + 1;
      } else if (c != ' ' && c != '\t' && c != '\r') {
        return;
      }
    }
  }
  void expect(char c, std::string_view where) {
    skip_blanks();
    if (peek() != c || at_end()) refuse("expected '{}' {}{}", c, where, at_end() ? ", and the text ends" : "");
    ++at_;
  }
  bool take(char c) {
    skip_blanks();
    if (at_end() || peek() != c) return false;
    ++at_;
    return true;
  }

  JsonValue read(int depth) {
    skip_blanks();
    if (depth > kDeepest) refuse("values nest deeper than {} levels", kDeepest);
    if (++num_values_ > kMostValues) refuse("there are more than {} values", kMostValues);
    JsonValue value{.line = line_, .column = column()};
    if (at_end()) refuse("expected a value, and the text ends");
    switch (peek()) {
      case '{': read_object(value, depth); break;
      case '[': read_array(value, depth); break;
      case '"':
        value.kind = JsonValue::Kind::text;
        value.text = read_text();
        break;
      default: read_word(value);
    }
    return value;
  }

  void read_object(JsonValue& value, int depth) {
    value.kind = JsonValue::Kind::object;
    ++at_;
    if (take('}')) return;
    do {
      skip_blanks();
      if (peek() != '"') refuse("expected the name of a member in quotes");
      if (value.members.size() == kMostMembers) refuse("an object has more than {} members", kMostMembers);
      const std::size_t name_at = at_;
      std::string name = read_text();
      if (name.size() > kLongestName)
        refuse("the name of a member has {} characters, and {} at most", name.size(), kLongestName);
      if (value.find(name)) {
        at_ = name_at;
        refuse("\"{}\" comes twice in one object", name);
      }
      expect(':', "after a name");
      value.members.emplace_back(std::move(name), read(depth + 1));
    } while (take(','));
    expect('}', "or ',' after a member");
  }

  void read_array(JsonValue& value, int depth) {
    value.kind = JsonValue::Kind::array;
    ++at_;
    if (take(']')) return;
    do value.items.push_back(read(depth + 1));
    while (take(','));
    expect(']', "or ',' after an item");
  }

  std::string read_text() {
    std::string out;
    for (++at_; !at_end(); ++at_) {
      const char c = text_[at_];
      if (c == '"') {
        ++at_;
        return out;
      }
      if (static_cast<unsigned char>(c) < 0x20) refuse("a text has a control character; write it as \\u00xx");
      if (c != '\\') {
        out += c;
        continue;
      }
      ++at_;
      out += escaped();
    }
    refuse("a text has no end");
  }

  // The character after a backslash. Of \u only what is ASCII: names and sources of this tree are.
  char escaped() {
    constexpr std::string_view letters = "\"\\/bfnrt", values = "\"\\/\b\f\n\r\t";
    if (const std::size_t i = letters.find(peek()); !at_end() && i != letters.npos) return values[i];
    unsigned code = 0;
    const char* const first = text_.data() + at_ + 1;
    if (peek() != 'u' || text_.size() - at_ < 5 || std::from_chars(first, first + 4, code, 16).ptr != first + 4 ||
        code > 0x7f)
      refuse("\\{} is no escape that is read here", at_end() ? ' ' : peek());
    at_ += 4;
    return static_cast<char>(code);
  }

  void read_word(JsonValue& value) {
    const std::size_t end = std::min(text_.find_first_of(" \t\r\n,:]}[{\"", at_), text_.size());
    const std::string_view word = text_.substr(at_, end - at_);
    if (word == "true" || word == "false") {
      value.kind = JsonValue::Kind::boolean;
      value.boolean = word == "true";
    } else if (word != "null") {
      value.kind = JsonValue::Kind::number;
      value.number = number_of_word(word);
    }
    at_ = end;
  }

  // JSON's numbers are those of from_chars that begin with '-' or a digit and have digits around their point.
  double number_of_word(std::string_view word) const {
    double number = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number);
    const std::string_view digits = word.starts_with('-') ? word.substr(1) : word;
    const std::size_t point = digits.find('.');
    const auto is_digit = [&](std::size_t i) { return i < digits.size() && digits[i] >= '0' && digits[i] <= '9'; };
    const bool is_json =
        is_digit(0) && !(digits[0] == '0' && is_digit(1)) && (point == digits.npos || is_digit(point + 1));
    if (error == std::errc::invalid_argument || end != word.data() + word.size() || !is_json)
      refuse("\"{}\" is no value", word.substr(0, 40));
    if (error != std::errc() || !std::isfinite(number) || std::abs(number) > kLargestNumber)
      refuse("{} is no number up to {}", word.substr(0, 40), kLargestNumber);
    return number;
  }

  static constexpr std::size_t kMostMembers = 200;  // which are compared with each other
  static constexpr std::size_t kLongestName = 200;
  static constexpr int kMostValues = 1 << 18;  // a hundred bytes each
  const std::string_view text_, file_;
  std::size_t at_ = 0, line_start_ = 0;
  int line_ = 1, num_values_ = 0;
};

constexpr std::string_view kKinds[] = {"null", "true or false", "a number", "a text", "an array", "an object"};

}  // namespace

const JsonValue* JsonValue::find(std::string_view name) const {
  for (const auto& [own, value] : members)
    if (own == name) return &value;
  return nullptr;
}

JsonValue parse_strict_json(std::string_view text, std::string_view file) { return JsonReader(text, file).whole(); }

void JsonFile::throw_at(const JsonValue& at, const std::string& message) const {
  fail("{}: line {}, column {}: {}", file_, at.line, at.column, message);
}

namespace {
const JsonValue& of_kind(const JsonFile& file, const JsonValue& value, JsonValue::Kind kind, std::string_view what) {
  if (value.kind != kind)
    file.fail_at(value, "{} is {}; give {}", what, kKinds[static_cast<std::size_t>(value.kind)],
                 kKinds[static_cast<std::size_t>(kind)]);
  return value;
}
}  // namespace

const JsonValue& JsonFile::object(const JsonValue& value, std::string_view what) const {
  return of_kind(*this, value, JsonValue::Kind::object, what);
}
const JsonValue& JsonFile::array(const JsonValue& value, std::string_view what) const {
  return of_kind(*this, value, JsonValue::Kind::array, what);
}
const std::string& JsonFile::text(const JsonValue& value, std::string_view what) const {
  return of_kind(*this, value, JsonValue::Kind::text, what).text;
}

bool JsonFile::boolean(const JsonValue& value, std::string_view what) const {
  return of_kind(*this, value, JsonValue::Kind::boolean, what).boolean;
}

double JsonFile::number(const JsonValue& value, std::string_view what, double least, bool least_excluded) const {
  const double number = of_kind(*this, value, JsonValue::Kind::number, what).number;
  if (number < least || (least_excluded && number == least))
    fail_at(value, "{} is {}; give {} {}", what, number, least_excluded ? "more than" : "at least", least);
  return number;
}

int JsonFile::count(const JsonValue& value, std::string_view what, int least) const {
  const double count = number(value, what, least);
  if (count != std::floor(count) || count > 1e9) fail_at(value, "{} is {}; give a whole number up to 1e9", what, count);
  return static_cast<int>(count);
}

void JsonFile::check_names(const JsonValue& object, const std::vector<std::string>& names) const {
  for (const auto& [name, value] : object.members)
    if (std::ranges::find(names, name) == names.end())
      fail_at(value, "\"{}\" is no name here{}", name, did_you_mean(name, names));
}

const JsonValue& JsonFile::required(const JsonValue& object, std::string_view name) const {
  const JsonValue* const value = object.find(name);
  if (!value) fail_at(object, "\"{}\" is missing", name);
  return *value;
}

std::string json_quoted(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (static_cast<unsigned char>(c) < 0x20) out += fmt::format("\\u{:04x}", static_cast<int>(c));
    else out += c;
  }
  return out + '"';
}

}  // namespace sherd
