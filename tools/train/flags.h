#pragma once
// One table binds the fields of plain structs to names that serve the command line and TOML files alike:
// `[model] layers = 4` is `--model.layers 4`. The table knows types, defaults and documentation, so parsing, error
// messages, --help and the printed config all come from it.
#include <cstdint>
#include <functional>
#include <iterator>
#include <optional>
#include <ranges>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "nn/parallel/shard/unit/policy.h"
#include "nn/plan/text_value.h"
#include "runtime/comm/group/process_group.h"
#include "runtime/tensor/device.h"
#include "runtime/tensor/dtype.h"
#include "runtime/tensor/nearest.h"

namespace sherd::train {

// ---- `--device` of train, eval and sample ----

inline constexpr const char* kDeviceHelp =
    "cpu, cuda (the first GPU) or cuda:N; of several ranks each has its own GPU, counted from there on its host";

/// "cpu", "cuda" or "cuda:1". Throws Error for anything else; whether there is such a device is asked by open_device().
Device parse_device(std::string_view text);

/// Opens the device for this rank of `group`, device_of_rank(), and limits the bytes of its tensors (0: no limit).
/// Throws Error, saying what is missing, if this host has no such device.
Device open_device(Device device, const ProcessGroup& group, std::int64_t memory_limit = 0);

// ---- fields and tables ----

/// A field that counts bytes: its text may have a unit, as "8GB" (runtime/tensor/quantity.h).
struct ByteField {
  std::int64_t* field;
};

/// A field that is made from its text, and throws Error for a wrong one.
struct TextField {
  std::function<std::string()> text;
  std::function<void(std::string_view)> set;
};
template <nn::TextValue T>
TextField text_field(T& field) {
  return {[&field] { return std::string(field.text()); }, [&field](std::string_view text) { field = T(text); }};
}

/// A device by its text: parse_device().
TextField text_field(Device& field);
/// f32, bf16 or f16; "" where there may be none.
TextField text_field(DType& field);
TextField text_field(std::optional<DType>& field);

using ConfigValue = std::variant<std::int64_t, double, bool, std::string>;
using ConfigTarget =
    std::variant<std::int64_t*, double*, bool*, std::string*, nn::ReshardAfterForward*, ByteField, TextField>;

/// Whether a key decides the numbers of a run (its recipe), only how they are rounded, in sums of other parts or on
/// another device, or only where, when and how fast it runs; the last is about one invocation, not about the run.
enum class KeyRole : std::uint8_t { recipe, rounding, run, invocation };

class ConfigTable {
 public:
  /// Binds `key` ("steps", "model.layers") to a field, whose present value is the default.
  void add(std::string key, ConfigTarget target, std::string doc, KeyRole role = KeyRole::recipe);

  /// Sets a field. `where` ("a.toml:3", "--steps") starts the message of an error: the key is unknown (names the one
  /// that it resembles), the value has another type (names key, expected and got). Integers serve as doubles, whole
  /// doubles as integers, and text with a unit as a number of bytes.
  void set(std::string_view key, const ConfigValue& value, std::string_view where);
  /// The same from text, read as the field's type.
  void set_text(std::string_view key, std::string_view text, std::string_view where);
  [[noreturn]] void fail_unknown(std::string_view key, std::string_view where) const;
  [[noreturn]] void fail_type(std::string_view key, std::string_view got, std::string_view where) const;

  bool contains(std::string_view key) const { return find(key) != nullptr; }
  /// Whether set() or set_text() has given it a value: what is not given is at its default.
  bool is_given(std::string_view key) const { return given_.contains(key); }
  bool has_section(std::string_view name) const;
  /// Whether a flag may name the key without a value, for true; and whether `text` is one that may follow.
  bool is_switch(std::string_view key) const;
  bool is_switch_value(std::string_view key, std::string_view text) const;
  std::vector<std::string> keys() const;
  /// Present values in the order of add(); `role` filters.
  std::vector<std::pair<std::string, ConfigValue>> values(std::optional<KeyRole> role = {}) const;

  /// The present values as a TOML document that load_toml_text() reads back to the same bits.
  std::string to_toml() const;
  /// One line per flag: "  --model.layers INTEGER   number of blocks (default 4)".
  std::string help() const;

 private:
  struct Row {
    std::string key;
    ConfigTarget target;
    std::string doc;
    KeyRole role;
    ConfigValue initial;
  };
  const Row* find(std::string_view key) const;
  /// As fail_unknown() where there is none.
  const Row& at(std::string_view key, std::string_view where) const;

  std::vector<Row> rows_;
  std::set<std::string, std::less<>> given_;
};

/// "4", "0.001", "true", "\"text\"": as TOML spells it.
std::string to_string(const ConfigValue& value);

/// What a command line says: words, and flags with the table's keys.
struct CommandLine {
  struct Flag {
    std::string key, text;
    std::string spelled;  ///< "--save-every"
  };
  std::vector<std::string> words;
  std::vector<Flag> flags;
  bool help = false;  ///< --help or -h
};

/// Splits `--key value`, `--key=value`, `--switch`, `--switch false`; dashes in a flag stand for the key's underscores,
/// and "--" ends the flags. Throws ExitError of kUsage for an unknown flag (naming the one it resembles) or a missing
/// value. Sets nothing.
CommandLine parse_command_line(const ConfigTable& table, std::span<const std::string_view> args);
/// Throws ExitError of kUsage, with the message of ConfigTable::set().
void apply_flags(ConfigTable& table, const CommandLine& line);
/// Both, for a command of words and flags: its words. With --help it prints `usage` and the flags instead, and nothing
/// is returned.
std::optional<std::vector<std::string>> read_command_line(ConfigTable& table, std::span<const std::string_view> args,
                                                          std::string_view usage);

using sherd::did_you_mean;
/// The same of rows that have a `name`.
template <std::ranges::range Rows>
  requires requires(const Rows& rows) { std::string(std::begin(rows)->name); }
std::string did_you_mean(std::string_view word, const Rows& rows) {
  std::vector<std::string> names;
  for (const auto& row : rows) names.emplace_back(row.name);
  return did_you_mean(word, names);
}

/// Sets the table's fields from TOML. Errors name file, line and key: syntax, unknown key, wrong type; of a file they
/// are of usage.
void load_toml_file(ConfigTable& table, const std::string& path);
void load_toml_text(ConfigTable& table, std::string_view text, const std::string& source);

}  // namespace sherd::train
