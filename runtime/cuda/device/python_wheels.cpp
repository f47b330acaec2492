#include "runtime/cuda/device/python_wheels.h"

#include <glob.h>

#include <filesystem>
#include <sstream>

#include <fmt/format.h>

namespace sherd::cuda {

namespace {

// Also of a python3 that is a link into the environment it belongs to: the link's folder counts, as for Python.
std::string prefix_of_python(const std::string& path) {
  std::istringstream folders(path);
  for (std::string folder; std::getline(folders, folder, ':');) {
    std::error_code ignored;
    if (!folder.empty() && std::filesystem::exists(folder + "/python3", ignored))
      return std::filesystem::path(folder).parent_path().string();
  }
  return {};
}

std::vector<std::string> matches(const std::string& pattern) {
  glob_t found{};
  std::vector<std::string> files;
  if (::glob(pattern.c_str(), GLOB_BRACE, nullptr, &found) == 0)
    files.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  ::globfree(&found);
  return files;
}

}  // namespace

std::vector<std::string> files_of_wheels(const Environment& environment, std::string_view file) {
  const std::string home = text_of(environment, "HOME");
  std::vector<std::string> files;
  for (const std::string& prefix :
       {text_of(environment, "VIRTUAL_ENV"), text_of(environment, "CONDA_PREFIX"),
        prefix_of_python(text_of(environment, "PATH")), home.empty() ? home : home + "/.local"}) {
    if (prefix.empty()) continue;
    for (const std::string& found :
         matches(fmt::format("{}/{{,local/}}lib/python3*/{{site,dist}}-packages/{}", prefix, file)))
      files.push_back(found);
  }
  return files;
}

}  // namespace sherd::cuda
