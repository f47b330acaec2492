// validate_rules [--full] [--table] [--op NAME] [--seed N]: every sharding rule against one rank, on a sample of calls
// or, with --full, on every call with all its placements along one axis (of more than 250, a choice). Prints a line per
// row of the op table, or with --table what every combination costs; then what is wrong, refused or missing without a
// reason. Exit status 1 if there is anything of that.
#include <cstdio>
#include <string>
#include <vector>

#include "runtime/op/core/op.h"
#include "tests/dtensor/validate/report.h"

namespace sherd::testing {
namespace {

struct Options {
  Effort effort;
  bool table = false;
  std::string op;
};

Options parse(std::span<char* const> args) {
  Options options;
  for (std::size_t i = 0; i < args.size(); ++i) {
    const std::string arg = args[i];
    const auto value = [&] {
      check(i + 1 < args.size(), "{} wants a value", arg);
      return std::string(args[++i]);
    };
    if (arg == "--full") {
      options.effort.variants = 1000;  // all
      options.effort.combinations = 250;
    } else if (arg == "--table") options.table = true;
    else if (arg == "--op") options.op = value();
    else if (arg == "--seed") options.effort.seed = std::stoull(value());
    else fail("validate_rules has no flag \"{}\": --full --table --op NAME --seed N", arg);
  }
  if (!options.op.empty()) op_table().at(options.op);  // names the nearest
  return options;
}

int validate(const Options& options) {
  std::vector<std::string> all;
  for (const Op* op : op_table().rows()) {
    if (!options.op.empty() && op->name != options.op) continue;
    const RowReport report = validate_row(*op, options.effort);
    fmt::print("{}{}", options.table ? table(report) : summary(report), options.table ? "" : "\n");
    std::fflush(stdout);
    for (std::string& line : failures(report)) all.push_back(std::move(line));
  }
  for (const std::string& line : all) fmt::print("{}\n", line);
  fmt::print("{} failures\n", all.size());
  return all.empty() ? 0 : 1;
}

}  // namespace
}  // namespace sherd::testing

int main(int argc, char** argv) {
  try {
    return sherd::testing::validate(sherd::testing::parse({argv + 1, static_cast<std::size_t>(argc - 1)}));
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 2;
  }
}
