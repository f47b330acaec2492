#include "tools/train/flags.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <utility>

#include "nn/data/utf8.h"
#include "runtime/comm/job/group_choice.h"
#include "runtime/exec/context.h"
#include "runtime/tensor/error.h"
#include "runtime/tensor/nearest.h"
#include "runtime/tensor/quantity.h"
#include "tools/train/exit_status.h"

namespace sherd::train {

namespace {

// By the index of the alternative in ConfigTarget.
constexpr std::string_view kExpected[] = {"an integer, as 1000 or 1e3",
                                          "a number",
                                          "true or false",
                                          "a string",
                                          "true, false or a number of ranks from 2",
                                          kBytesForm,
                                          "a string"};
constexpr std::string_view kPlaceholder[] = {" INTEGER", " NUMBER", "", " TEXT", " [false|N]", " BYTES", " TEXT"};

ConfigValue value_of(const nn::ReshardAfterForward* field) {
  if (const std::optional<int> ranks = field->ranks()) return std::int64_t{*ranks};
  return !field->is_off();
}
ConfigValue value_of(ByteField bytes) { return *bytes.field; }
ConfigValue value_of(const TextField& field) { return field.text(); }
template <class T>
ConfigValue value_of(const T* field) {
  return *field;
}

ConfigValue read_target(const ConfigTarget& target) {
  return std::visit([](const auto& field) { return value_of(field); }, target);
}

/// A double that is whole, as TOML has it for 1e3, as an integer.
std::optional<std::int64_t> whole_of(const ConfigValue& value) {
  if (const auto* integer = std::get_if<std::int64_t>(&value)) return *integer;
  const auto* number = std::get_if<double>(&value);
  constexpr double kFirstBeyond = 0x1p63;
  if (number == nullptr || *number != std::trunc(*number) || std::abs(*number) >= kFirstBeyond) return std::nullopt;
  return static_cast<std::int64_t>(*number);
}

template <class Parsed, class Field>
bool assign(const std::optional<Parsed>& parsed, Field* field) {
  if (parsed) *field = *parsed;
  return parsed.has_value();
}

/// Whether the field takes a value of this type, which it then has.
bool store(const ConfigValue& value, std::int64_t* field) { return assign(whole_of(value), field); }
bool store(const ConfigValue& value, ByteField bytes) {
  const auto* text = std::get_if<std::string>(&value);
  return assign(text != nullptr ? parse_bytes(*text) : whole_of(value), bytes.field);
}
bool store(const ConfigValue& value, double* field) {
  if (const auto* integer = std::get_if<std::int64_t>(&value)) *field = static_cast<double>(*integer);
  else if (const auto* number = std::get_if<double>(&value)) *field = *number;
  else return false;
  return true;
}
bool store(const ConfigValue& value, nn::ReshardAfterForward* field) {
  const auto* const flag = std::get_if<bool>(&value);
  const std::optional<std::int64_t> ranks = whole_of(value);
  if (flag != nullptr) *field = *flag;
  else if (ranks && std::in_range<int>(*ranks)) *field = static_cast<int>(*ranks);
  else return false;
  return true;
}
bool store(const ConfigValue& value, const TextField& field) {
  const auto* const text = std::get_if<std::string>(&value);
  if (text != nullptr) field.set(*text);
  return text != nullptr;
}
template <class T>
bool store(const ConfigValue& value, T* field) {
  const auto* same = std::get_if<T>(&value);
  if (same != nullptr) *field = *same;
  return same != nullptr;
}

DType floating_dtype(std::string_view text) {
  check(text == "f32" || text == "bf16" || text == "f16", "must be one of f32, bf16, f16, got \"{}\"", text);
  return dtype_from_name(text);
}

/// What a field's text means; nothing if it is no value of the field.
std::optional<ConfigValue> read_text(std::string_view text, const std::int64_t*) { return parse_count(text); }
std::optional<ConfigValue> read_text(std::string_view text, const double*) { return parse_number(text); }
std::optional<ConfigValue> read_text(std::string_view text, const std::string*) { return std::string(text); }
std::optional<ConfigValue> read_text(std::string_view text, const TextField&) { return std::string(text); }
std::optional<ConfigValue> read_text(std::string_view text, ByteField) { return parse_bytes(text); }
std::optional<ConfigValue> read_text(std::string_view text, const bool*) {
  return text == "true" || text == "false" ? std::optional<ConfigValue>(text == "true") : std::nullopt;
}
std::optional<ConfigValue> read_text(std::string_view text, const nn::ReshardAfterForward*) {
  const auto number = parse_count(text);
  return number ? number : read_text(text, static_cast<const bool*>(nullptr));
}

std::string flag_name(std::string_view key) {
  std::string flag = "--" + std::string(key);
  std::replace(flag.begin(), flag.end(), '_', '-');
  return flag;
}

std::string quote(std::string_view text) {
  std::string result = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') result += fmt::format("\\{}", c);
    else if (byte < 0x20 || byte == 0x7F) result += fmt::format("\\u{:04X}", byte);
    else result += c;
  }
  return result + "\"";
}

std::string hint(std::string_view key, const ConfigTable& table) {
  const std::vector<std::string> keys = table.keys();
  if (const auto name = nearest(key, keys)) return fmt::format("did you mean {}?", flag_name(*name));
  return keys.empty() ? "there are none here" : "--help lists all of them";
}

/// What other programs take for true or false, which is no word of the command.
bool is_switch_elsewhere(std::string_view text) {
  constexpr std::string_view kWords[] = {"0", "1", "yes", "no", "on", "off", "True", "False", "TRUE", "FALSE"};
  return std::ranges::find(kWords, text) != std::end(kWords);
}

}  // namespace

Device parse_device(std::string_view text) {
  constexpr std::string_view kNumbered = "cuda:";
  if (text == "cpu") return Device::cpu();
  if (text == "cuda") return Device::cuda(0);
  const auto index = text.starts_with(kNumbered) ? parse_count(text.substr(kNumbered.size())) : std::nullopt;
  if (index && std::in_range<std::uint8_t>(*index)) return Device::cuda(static_cast<std::uint8_t>(*index));
  fail("device must be cpu, cuda or cuda:N, got \"{}\"", text);
}

Device open_device(Device device, const ProcessGroup& group, std::int64_t memory_limit) {
  const Device own = device_of_rank(device, group);
  RankContext::current().allocator(own).set_limit(memory_limit);
  return own;
}

TextField text_field(Device& field) {
  return {[&field] { return to_string(field); }, [&field](std::string_view text) { field = parse_device(text); }};
}
TextField text_field(DType& field) {
  return {[&field] { return std::string(name(field)); },
          [&field](std::string_view text) { field = floating_dtype(text); }};
}
TextField text_field(std::optional<DType>& field) {
  return {
      [&field] { return field ? std::string(name(*field)) : std::string(); },
      [&field](std::string_view text) { field = text.empty() ? std::nullopt : std::optional(floating_dtype(text)); }};
}

std::string to_string(const ConfigValue& value) {
  if (const auto* text = std::get_if<std::string>(&value)) return quote(*text);
  if (const auto* number = std::get_if<double>(&value)) {
    // The shortest text that reads back to the same bits, marked as a float.
    const std::string text = fmt::format("{}", *number);
    return text.find_first_of(".en") == std::string::npos ? text + ".0" : text;
  }
  if (const auto* flag = std::get_if<bool>(&value)) return *flag ? "true" : "false";
  return fmt::format("{}", std::get<std::int64_t>(value));
}

void ConfigTable::add(std::string key, ConfigTarget target, std::string doc, KeyRole role) {
  check(!contains(key), "the key {} is bound twice", key);
  rows_.push_back({std::move(key), target, std::move(doc), role, read_target(target)});
}

const ConfigTable::Row* ConfigTable::find(std::string_view key) const {
  const auto found = std::find_if(rows_.begin(), rows_.end(), [&](const Row& row) { return row.key == key; });
  return found == rows_.end() ? nullptr : &*found;
}

const ConfigTable::Row& ConfigTable::at(std::string_view key, std::string_view where) const {
  const Row* row = find(key);
  if (row == nullptr) fail_unknown(key, where);
  return *row;
}

void ConfigTable::fail_unknown(std::string_view key, std::string_view where) const {
  fail("{}: unknown key {}{}; --help lists all of them", where, key, did_you_mean(key, keys()));
}

void ConfigTable::fail_type(std::string_view key, std::string_view got, std::string_view where) const {
  const Row& row = at(key, where);
  fail("{}: {} must be {}, got {}", where, key, kExpected[row.target.index()], got);
}

void ConfigTable::set(std::string_view key, const ConfigValue& value, std::string_view where) {
  const Row& row = at(key, where);
  if (const auto* text = std::get_if<std::string>(&value))
    check(find_invalid_utf8(*text) == std::string::npos, "{}: the value of {} is not valid UTF-8", where, key);
  bool is_stored = false;
  try {
    is_stored = std::visit([&](const auto& field) { return store(value, field); }, row.target);
  } catch (const Error& error) {
    const bool names_key = error.message().find(key) != std::string::npos;
    fail("{}: {}{}", where, names_key ? "" : std::string(key) + " ", error.message());
  }
  if (!is_stored) fail_type(key, to_string(value), where);
  given_.emplace(key);
}

void ConfigTable::set_text(std::string_view key, std::string_view text, std::string_view where) {
  const Row& row = at(key, where);
  const auto value = std::visit([&](const auto& field) { return read_text(text, field); }, row.target);
  if (!value) fail_type(key, quote(text), where);
  set(key, *value, where);
}

bool ConfigTable::has_section(std::string_view name) const {
  const std::string prefix = std::string(name) + ".";
  return std::any_of(rows_.begin(), rows_.end(), [&](const Row& row) { return row.key.starts_with(prefix); });
}

bool ConfigTable::is_switch(std::string_view key) const {
  const Row* row = find(key);
  return row != nullptr &&
         (std::holds_alternative<bool*>(row->target) || std::holds_alternative<nn::ReshardAfterForward*>(row->target));
}

bool ConfigTable::is_switch_value(std::string_view key, std::string_view text) const {
  const Row* row = find(key);
  const bool takes_number = row != nullptr && std::holds_alternative<nn::ReshardAfterForward*>(row->target);
  return text == "true" || text == "false" || (takes_number && parse_count(text));
}

std::vector<std::string> ConfigTable::keys() const {
  std::vector<std::string> result;
  for (const Row& row : rows_) result.push_back(row.key);
  return result;
}

std::vector<std::pair<std::string, ConfigValue>> ConfigTable::values(std::optional<KeyRole> role) const {
  std::vector<std::pair<std::string, ConfigValue>> result;
  for (const Row& row : rows_)
    if (!role || row.role == *role) result.emplace_back(row.key, read_target(row.target));
  return result;
}

std::string ConfigTable::to_toml() const {
  // Keys without a section come first: after a [section] line they would belong to it.
  std::vector<std::string> sections = {""};
  const auto section_of = [](const std::string& key) { return key.substr(0, key.find('.') + 1); };  // "model."
  for (const Row& row : rows_)
    if (std::find(sections.begin(), sections.end(), section_of(row.key)) == sections.end())
      sections.push_back(section_of(row.key));
  std::string text;
  for (const std::string& section : sections) {
    if (!section.empty()) text += fmt::format("\n[{}]\n", section.substr(0, section.size() - 1));
    for (const Row& row : rows_)
      if (section_of(row.key) == section)
        text += fmt::format("{} = {}\n", row.key.substr(section.size()), to_string(read_target(row.target)));
  }
  return text;
}

std::string ConfigTable::help() const {
  std::string text;
  bool has_bytes = false;
  for (const Row& row : rows_) {
    const std::string flag = flag_name(row.key) + std::string(kPlaceholder[row.target.index()]);
    text += fmt::format("  {:<40} {} (default {})\n", flag, row.doc, to_string(row.initial));
    has_bytes = has_bytes || std::holds_alternative<ByteField>(row.target);
  }
  if (has_bytes) text += fmt::format("\n{}.\n", kByteUnits);
  return text;
}

CommandLine parse_command_line(const ConfigTable& table, std::span<const std::string_view> args) {
  CommandLine line;
  for (std::size_t i = 0; i < args.size(); ++i) {
    const std::string_view arg = args[i];
    if (arg == "--") {
      line.words.insert(line.words.end(), args.begin() + static_cast<std::ptrdiff_t>(i) + 1, args.end());
      break;
    }
    if (arg == "--help" || arg == "-h") {
      line.help = true;
      continue;
    }
    if (!arg.starts_with("-") || arg == "-") {
      line.words.emplace_back(arg);
      continue;
    }
    const std::size_t equals = arg.find('=');
    const std::string spelled(arg.substr(0, equals));
    std::string key(spelled.substr(std::min<std::size_t>(spelled.find_first_not_of('-'), spelled.size())));
    std::replace(key.begin(), key.end(), '-', '_');
    if (!spelled.starts_with("--") || !table.contains(key))
      throw ExitError(kUsage, fmt::format("unknown flag {}; {}", spelled, hint(key, table)));
    const bool has_next = i + 1 < args.size();
    if (equals != std::string_view::npos) {
      line.flags.push_back({key, std::string(arg.substr(equals + 1)), spelled});
    } else if (table.is_switch(key)) {
      const bool spelled_out =
          has_next && (table.is_switch_value(key, args[i + 1]) || is_switch_elsewhere(args[i + 1]));
      line.flags.push_back({key, spelled_out ? std::string(args[++i]) : "true", spelled});
    } else {
      check_usage(has_next && !args[i + 1].starts_with("--"), "{} needs a value", spelled);
      line.flags.push_back({key, std::string(args[++i]), spelled});
    }
  }
  return line;
}

void apply_flags(ConfigTable& table, const CommandLine& line) {
  as_usage([&] {
    for (const CommandLine::Flag& flag : line.flags) table.set_text(flag.key, flag.text, flag.spelled);
  });
}

std::optional<std::vector<std::string>> read_command_line(ConfigTable& table, std::span<const std::string_view> args,
                                                          std::string_view usage) {
  const CommandLine line = parse_command_line(table, args);
  if (line.help) {
    std::fputs(fmt::format("{}\n{}", usage, table.help()).c_str(), stdout);
    return std::nullopt;
  }
  apply_flags(table, line);
  return line.words;
}

}  // namespace sherd::train
