#include "compile/run/dump.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <utility>

#include "compile/ir/text/line_diff.h"
#include "compile/ir/text/print.h"
#include "runtime/comm/group/agree.h"
#include "runtime/tensor/indices.h"

namespace sherd {

namespace {

void make_folder(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  check(!error, "cannot make the folder \"{}\": {}", path, error.message());
}

void write_file(const std::string& path, std::string_view text) {
  std::ofstream file(path, std::ios::binary);
  file << text << std::flush;
  const int error = errno;
  check(file.good(), "cannot write \"{}\": {}", path, std::strerror(error));
}

}  // namespace

// Files are written when ranks have fitted the program: one that fails in the midst of that leaves the others waiting.
Fitted dump_graph(const ir::Program& recorded, FitOptions options, const std::string& folder) {
  std::vector<std::pair<std::string, std::string>> texts;
  if (!folder.empty())
    options.observe = [&](std::string_view name, const ir::Program& program) {
      texts.emplace_back(fmt::format("{:02}-{}", texts.size(), name), ir::text(program));
    };
  Fitted fitted = fit_program(recorded, options);
  const auto write = [&] {
    if (!folder.empty()) make_folder(folder);
    for (const std::size_t i : indices(texts)) {
      const std::string path = (std::filesystem::path(folder) / texts[i].first).string();
      write_file(path + ".txt", texts[i].second);
      if (i > 0) write_file(path + ".diff", ir::line_diff(texts[i - 1].second, texts[i].second));
    }
  };
  if (options.group) together(*options.group, write);
  else write();
  return fitted;
}

}  // namespace sherd
