#include "runtime/op/attrs/attr_text.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "runtime/op/core/op.h"
#include "runtime/tensor/error.h"
#include "runtime/tensor/nearest.h"

namespace sherd {

namespace {

constexpr std::string_view kDelimiters = " ,[]{}=\"";
constexpr std::size_t kShown = 40;  // characters of a wrong text

// The names of the kind's fields, and of the fields of its groups.
void add_names(const AttrKind& kind, std::vector<std::string>& names) {
  for (const AttrField& field : kind.fields)
    if (field.group) add_names(*field.group, names);
    else names.emplace_back(field.name);
}

}  // namespace

// ---- writing ----

std::string AttrsView::print() const {
  AttrWriter out(false);
  if (!empty()) out.fields(*kind(), object_);
  return out.take();
}

std::string AttrsView::print_rank_neutral() const {
  AttrWriter out(true);
  if (!empty()) out.fields(*kind(), object_);
  return out.take();
}

void print_attrs(const AttrKind& kind, const void* object, AttrWriter& out) {
  out.raw("{");
  out.fields(kind, object);
  out.raw("}");
}

void AttrWriter::fields(const AttrKind& kind, const void* object) {
  for (const AttrField& field : kind.fields) {
    if (field.is_local && is_rank_neutral_) continue;
    if (field.is_optional && field.equal(object, kind.defaults())) continue;
    if (field.group) {
      fields(*field.group, field.at(object));
      continue;
    }
    if (!text_.empty() && text_.back() != '{') text_ += ' ';
    text_ += field.name;
    text_ += '=';
    field.print(object, *this);
  }
}

void AttrWriter::name(std::string_view name) {
  const auto is_plain = [](char c) { return c > ' ' && c != '\\' && kDelimiters.find(c) == std::string_view::npos; };
  if (!name.empty() && std::ranges::all_of(name, is_plain)) return raw(name);
  text_ += '"';
  for (const char c : name) {
    if (c == '"' || c == '\\') text_ += '\\';
    text_ += c;
  }
  text_ += '"';
}

// ---- reading ----

Attrs parse_attrs(const AttrKind& kind, std::string_view text, const UnitFinder& units) {
  Ref<AttrBlock> block = AttrBlock::make(kind, kind.defaults());
  AttrReader reader(text, units);
  reader.fields(kind, block->object());
  check(reader.is_at_end(), "attributes end in a brace that none opens: {}", text);
  return Attrs(std::move(block));
}

Attrs parse_attrs(const Op& row, std::string_view text, const UnitFinder& units) {
  try {
    if (row.attrs) return parse_attrs(*row.attrs, text, units);
    check(text.empty(), "it carries no attributes, and the text has \"{}\"", text);
    return {};
  } catch (const Error& error) { throw Error(fmt::format("{}: {}", row.name, error.message())); }
}

void read_attrs(const AttrKind& kind, void* object, AttrReader& in) {
  if (!in.take('{')) in.refuse("group of fields in braces");
  in.fields(kind, object);
  if (!in.take('}')) in.refuse("group of fields in braces");
}

std::string_view AttrReader::word() {
  const std::size_t begin = at_;
  at_ = std::min(text_.find_first_of(kDelimiters, at_), text_.size());
  return text_.substr(begin, at_ - begin);
}

bool AttrReader::take(char c) {
  if (is_at_end() || text_[at_] != c) return false;
  ++at_;
  return true;
}

std::string AttrReader::name() {
  if (!take('"')) {
    const std::string_view plain = word();
    if (plain.empty()) refuse("name");
    return std::string(plain);
  }
  std::string name;
  while (!take('"')) {
    take('\\');
    if (is_at_end()) refuse("name in quotes");
    name += text_[at_++];
  }
  return name;
}

void AttrReader::fields(const AttrKind& kind, void* object) {
  const Now outer = std::exchange(now_, {.kind = &kind, .field = {}, .value_at = at_});
  std::vector<Place> places;
  int num_groups = 0;
  add_places(kind, object, -1, num_groups, places);
  for (;;) {
    while (take(' ')) {}
    if (is_at_end() || text_[at_] == '}') break;
    read_field(places);
  }
  for (const Place& place : places) {
    if (place.is_read || place.field->is_optional) continue;
    const bool is_missing =
        place.optional_group < 0 ||
        std::ranges::any_of(
            places, [&](const Place& other) { return other.is_read && other.optional_group == place.optional_group; });
    if (is_missing) fail_with(fmt::format("{} is missing", place.field->name));
  }
  now_ = outer;
}

void AttrReader::add_places(const AttrKind& kind, void* object, int optional_group, int& num_groups,
                            std::vector<Place>& places) {
  for (const AttrField& field : kind.fields) {
    if (!field.group) {
      places.push_back({.field = &field, .object = object, .optional_group = optional_group});
      continue;
    }
    void* group = const_cast<void*>(field.at(object));  // of an object that the reader owns and may change
    add_places(*field.group, group, field.is_optional ? num_groups++ : optional_group, num_groups, places);
  }
}

void AttrReader::read_field(std::span<Place> places) {
  const std::size_t begin = at_;
  const std::string_view name = word();
  if (name.empty() || !take('='))
    fail_with(fmt::format("\"{}\" does not begin with name=", text_.substr(begin, kShown)));
  const auto place = std::ranges::find(places, name, [](const Place& p) { return p.field->name; });
  if (place == places.end()) {
    std::vector<std::string> names;
    add_names(*now_.kind, names);
    fail_with(fmt::format("there is no {}{}", name.substr(0, kShown), did_you_mean(name, names)));
  }
  if (std::exchange(place->is_read, true)) fail_with(fmt::format("{} stands there twice", name));
  now_.field = place->field->name;
  now_.value_at = at_;
  place->field->read(place->object, *this);
  if (!is_at_end() && text_[at_] != ' ' && text_[at_] != '}') fail_because("that is more than a value");
}

std::string_view AttrReader::value_text() const {
  const std::string_view rest = text_.substr(now_.value_at);
  return rest.substr(0, std::min(rest.find(' '), kShown));
}

void AttrReader::refuse(std::string_view what) const {
  fail_with(fmt::format("{} = {} is no {}", now_.field, value_text(), what));
}

void AttrReader::fail_because(std::string_view reason) const {
  fail_with(fmt::format("{} = {}: {}", now_.field, value_text(), reason));
}

void AttrReader::fail_with(std::string_view problem) const {
  std::vector<std::string> names;
  if (now_.kind) add_names(*now_.kind, names);
  fail("{}; attributes are {}", problem, fmt::join(names, ", "));
}

}  // namespace sherd
