#include <cerrno>
#include <cstring>
#include <fstream>
#include <string>

#include "runtime/tensor/error.h"
#include "tools/train/flags.h"

// The only file that includes toml++, which costs seconds of compile time. Version 3.3 asserts on some malformed texts
// ("[[[" is one), which would end the process, or without assertions be undefined; here an assertion is an Error.
#undef NDEBUG
#define TOML_ASSERT(expr) ((expr) ? void() : ::sherd::fail("malformed TOML"))
#include <toml++/toml.h>

namespace sherd {

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

void set_value(ConfigTable& table, const std::string& key, const toml::node& node, const std::string& at) {
  if (const auto* integer = node.as_integer()) table.set(key, integer->get(), at);
  else if (const auto* number = node.as_floating_point()) table.set(key, number->get(), at);
  else if (const auto* flag = node.as_boolean()) table.set(key, flag->get(), at);
  else if (const auto* text = node.as_string()) table.set(key, text->get(), at);
  else table.fail_type(key, describe_node(node), at);
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

}  // namespace

void load_toml_text(ConfigTable& table, std::string_view text, const std::string& source) {
  check(text.size() <= kMaxBytes, "{}: a config has at most {} bytes, this one {}", source, kMaxBytes, text.size());
  set_all(table, parse(text, source), "", 1, source);
}

void load_toml_file(ConfigTable& table, const std::string& path) {
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  std::string text(kMaxBytes + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  check(file.eof(), "cannot read the config \"{}\": {}", path,
        errno != 0 ? std::strerror(errno) : "it is too large to be one");
  text.resize(static_cast<std::size_t>(file.gcount()));
  load_toml_text(table, text, path);
}

}  // namespace sherd
