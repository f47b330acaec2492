#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include "runtime/os/descriptor.h"
#include "runtime/tensor/error.h"
#include "tools/train/exit_status.h"
#include "tools/train/flags.h"
#include "tools/train/toml_values.h"

// The only file that includes toml++, which costs seconds of compile time. Version 3.3 asserts on some malformed texts
// ("[[[" is one), which would end the process, or without assertions be undefined; here an assertion is an Error.
#undef NDEBUG
#define TOML_ASSERT(expr) ((expr) ? void() : ::sherd::fail("malformed TOML"))
#include <toml++/toml.h>

namespace sherd::train {

namespace {

// toml++ nests tables by recursion; this bounds how deep a hostile file can drive it.
constexpr std::size_t kMaxBytes = 16 * 1024;
constexpr std::size_t kMaxDepth = 8;

std::string where(const std::string& source, const toml::source_region& region) {
  return fmt::format("{}:{}", source, region.begin.line);
}

std::string describe_node(const toml::node& node) {
  switch (node.type()) {
    case toml::node_type::table: return "a table";
    case toml::node_type::array: return "an array";
    case toml::node_type::date:
    case toml::node_type::time:
    case toml::node_type::date_time: return "a date or time";
    default: return "a value of another kind";
  }
}

/// Nothing for what is no single value.
std::optional<ConfigValue> value_of(const toml::node& node) {
  if (const auto* integer = node.as_integer()) return integer->get();
  if (const auto* number = node.as_floating_point()) return number->get();
  if (const auto* flag = node.as_boolean()) return flag->get();
  if (const auto* text = node.as_string()) return text->get();
  return std::nullopt;
}

void set_value(ConfigTable& table, const std::string& key, const toml::node& node, const std::string& at) {
  if (const auto value = value_of(node)) table.set(key, *value, at);
  else table.fail_type(key, describe_node(node), at);
}

void collect(std::vector<TomlValue>& values, const toml::table& from, const std::string& prefix, std::size_t depth,
             const std::string& source) {
  for (const auto& [name, node] : from) {
    const std::string key = prefix + std::string(name.str()), at = where(source, name.source());
    check(depth < kMaxDepth, "{}: {} is nested too deep", at, key);
    if (const toml::table* const section = node.as_table()) {
      collect(values, *section, key + ".", depth + 1, source);
      continue;
    }
    auto value = value_of(node);
    check(value.has_value(), "{}: {} must be a number, text, true or false, and is {}", at, key, describe_node(node));
    values.push_back({key, std::move(*value), name.source().begin.line, at});
  }
}

void set_all(ConfigTable& table, const toml::table& from, const std::string& prefix, std::size_t depth,
             const std::string& source) {
  for (const auto& [name, node] : from) {
    const std::string key = prefix + std::string(name.str());
    const toml::table* section = node.as_table();
    const bool descend = section != nullptr && !table.contains(key) && depth < kMaxDepth;
    if (!descend) set_value(table, key, node, where(source, name.source()));
    else if (section->empty() && !table.has_section(key)) table.fail_unknown(key, where(source, name.source()));
    else set_all(table, *section, key + ".", depth + 1, source);
  }
}

toml::table parse(std::string_view text, const std::string& source) {
  try {
    return toml::parse(text, source);
  } catch (const toml::parse_error& error) {
    fail("{}: {}", where(source, error.source()), error.description());
  } catch (const Error& error) {  // an assertion, which knows no line
    fail("{}: {}", source, error.message());
  }
}

/// All of a file, or of what somebody writes into a pipe; nothing comes of a pipe for longer than this: Error.
std::string read_config(const std::string& path) {
  constexpr int kPatienceMs = 2000;
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  const int error = errno;
  check(file.is_open(), "cannot read the config \"{}\": {}", path, std::strerror(error));
  std::string text;
  for (std::array<char, 4096> part;;) {
    pollfd ready{.fd = file.get(), .events = POLLIN, .revents = 0};
    const int num_ready = ::poll(&ready, 1, kPatienceMs);
    if (num_ready < 0 && errno == EINTR) continue;  // a pipe that nobody has opened yet would seem to be at its end
    check(num_ready != 0, "cannot read the config \"{}\": it is a pipe, and nobody has written to it for {} s", path,
          kPatienceMs / 1000);
    const ssize_t got = ::read(file.get(), part.data(), part.size());
    const int failure = errno;
    if (got < 0 && (failure == EINTR || failure == EAGAIN)) continue;
    check(got >= 0, "cannot read the config \"{}\": {}", path, std::strerror(failure));
    if (got == 0) return text;
    text.append(part.data(), static_cast<std::size_t>(got));
    check_usage(text.size() <= kMaxBytes, "cannot read the config \"{}\": it is too large to be one", path);
  }
}

}  // namespace

void load_toml_text(ConfigTable& table, std::string_view text, const std::string& source) {
  check(text.size() <= kMaxBytes, "{}: a config has at most {} bytes, this one {}", source, kMaxBytes, text.size());
  set_all(table, parse(text, source), "", 1, source);
}

// What it holds is as wrong as flags are; that it cannot be read may be over by the next start.
void load_toml_file(ConfigTable& table, const std::string& path) {
  const std::string text = read_config(path);
  as_usage([&] { load_toml_text(table, text, path); });
}

std::vector<TomlValue> read_toml_values(const std::string& path) {
  const std::string text = read_config(path);
  std::vector<TomlValue> values;
  as_usage([&] { collect(values, parse(text, path), "", 1, path); });
  std::ranges::stable_sort(values, {}, &TomlValue::line);
  return values;
}

}  // namespace sherd::train
