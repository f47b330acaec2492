#pragma once
// Attributes as text and back, for printed graphs, saved plans and errors. What is written reads back to equal content.
//
//   attributes  fields separated by spaces: name=value
//   value       3   -0.5   inf   true   f32   cuda:1   dp#1   "any text"   [2,3]   {piece=0 offset=64}
#include <cstddef>
#include <functional>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/op/attrs/attrs.h"
#include "runtime/tensor/error.h"

namespace sherd {

struct Op;
struct UnitLayout;

/// What a text calls the layouts of units, and which one it means by a name, null for none: for texts that list layouts
/// themselves. In others they go by their labels on this rank (unit_layout.h).
using UnitNamer = std::function<std::string(const UnitLayout& unit)>;
using UnitFinder = std::function<std::shared_ptr<const UnitLayout>(const std::string& name)>;

/// Attributes of a kind from their text; fields may come in any order. Error naming the field, what was expected and
/// what was found, for a text that is not of that kind, a field that the kind does not have, a missing field, and a
/// value that no text can express.
Attrs parse_attrs(const AttrKind& kind, std::string_view text, const UnitFinder& units = {});

/// The same for the row, which the error names. A row without attributes has an empty text.
Attrs parse_attrs(const Op& row, std::string_view text, const UnitFinder& units = {});

/// Writes values, for AttrValue<T>::print.
class AttrWriter {
 public:
  explicit AttrWriter(bool is_rank_neutral, UnitNamer units = {})
      : is_rank_neutral_(is_rank_neutral), units_(std::move(units)) {}
  /// Whether to leave out fields whose values differ between ranks that run one program.
  bool is_rank_neutral() const { return is_rank_neutral_; }
  /// Empty: units go by their labels.
  const UnitNamer& units() const { return units_; }
  /// Writes the text unchanged.
  void raw(std::string_view text) { text_ += text; }
  /// Writes a name, in quotes unless it can be read back without them.
  void name(std::string_view name);
  void fields(const AttrKind& kind, const void* object);
  std::string take() { return std::move(text_); }

 private:
  bool is_rank_neutral_;
  UnitNamer units_;
  std::string text_;
};

/// Reads values one after the other, for AttrValue<T>::read.
class AttrReader {
 public:
  explicit AttrReader(std::string_view text, UnitFinder units = {}) : text_(text), units_(std::move(units)) {}

  /// The text up to the next space, comma, bracket, brace, quote, = or the end; may be empty.
  std::string_view word();
  /// Reads what AttrWriter::name() wrote.
  std::string name();
  /// If the next character is `c`, takes it and returns true.
  bool take(char c);
  /// "[a,b,c]", calling `read` for each element.
  template <class Fn>
  void list(const Fn& read) {
    if (!take('[')) refuse("list");
    if (take(']')) return;
    do read();
    while (take(','));
    if (!take(']')) refuse("list");
  }
  /// Reads fields up to a brace or the end. Fields that are not in the text keep their values.
  void fields(const AttrKind& kind, void* object);
  bool is_at_end() const { return at_ == text_.size(); }
  /// Empty: units go by their labels.
  const UnitFinder& units() const { return units_; }

  /// "start = 3x is no integer; attributes are dim, start, length".
  [[noreturn]] void refuse(std::string_view what) const;
  /// "group = dp#9: there is no such group; attributes are ..."
  [[noreturn]] void fail_because(std::string_view reason) const;

 private:
  /// A field that may occur in the text.
  struct Place {
    const AttrField* field;
    void* object;        // of the field's struct
    int optional_group;  // index of the optional group it belongs to; -1: none
    bool is_read = false;
  };
  /// The name of what is being read, for errors.
  struct Now {
    const AttrKind* kind = nullptr;
    std::string_view field;
    std::size_t value_at = 0;
  };
  static void add_places(const AttrKind& kind, void* object, int optional_group, int& num_groups,
                         std::vector<Place>& places);
  void read_field(std::span<Place> places);
  [[noreturn]] void fail_with(std::string_view problem) const;
  std::string_view value_text() const;

  std::string_view text_;
  UnitFinder units_;
  std::size_t at_ = 0;
  Now now_;
};

/// The one of `all` whose name comes next. Error that lists them.
template <class E>
E read_name(AttrReader& in, std::initializer_list<E> all, std::string_view what) {
  const std::string_view word = in.word();
  std::string names;
  for (const E value : all) {
    if (name(value) == word) return value;
    names += fmt::format("{}{}", names.empty() ? "" : ", ", name(value));
  }
  in.refuse(fmt::format("{} ({})", what, names));
}

}  // namespace sherd
