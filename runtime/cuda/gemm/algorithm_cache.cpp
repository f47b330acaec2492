#include "runtime/cuda/gemm/algorithm_cache.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <utility>

#include "runtime/cuda/device/check.h"
#include "runtime/os/descriptor.h"
#include "runtime/tensor/fnv1a.h"
#include "runtime/tensor/quantity.h"

namespace sherd::cuda {

namespace {

constexpr std::string_view kTitle = "sherd matmul algorithms 1";
constexpr const char* kFolder = "matmul";
constexpr std::size_t kMaxBytes = std::size_t{4} << 20;  // some ten thousand problems
constexpr std::size_t kWords = sizeof(cublasLtMatmulAlgo_t) / sizeof(std::uint64_t);
constexpr std::size_t kHexDigits = 16;  // of a word

// "problem = algorithm checksum"
std::string line_of(const std::string& problem, const std::string& algorithm) {
  const std::string text = fmt::format("{} = {}", problem, algorithm);
  return fmt::format("{} {:016x}\n", text, fnv1a(text));
}

std::optional<std::pair<std::string, std::string>> parse_line(std::string_view line) {
  constexpr std::size_t kTail = 1 + kHexDigits;  // space, checksum
  constexpr std::string_view kEquals = " = ";
  if (line.size() <= kWords * kHexDigits + kEquals.size() + kTail) return std::nullopt;
  const std::string_view text = line.substr(0, line.size() - kTail);
  if (line[text.size()] != ' ' || number_of<std::uint64_t>(line.substr(text.size() + 1), 16) != fnv1a(text))
    return std::nullopt;
  const std::size_t split = text.size() - kWords * kHexDigits;
  if (text.substr(split - kEquals.size(), kEquals.size()) != kEquals) return std::nullopt;
  return std::pair(std::string(text.substr(0, split - kEquals.size())), std::string(text.substr(split)));
}

std::string_view take_line(std::string_view& rest) {
  const std::string_view line = rest.substr(0, rest.find('\n'));
  rest.remove_prefix(std::min(line.size() + 1, rest.size()));
  return line;
}

}  // namespace

std::string to_text(const GemmAlgorithm& algorithm) {
  std::string text;
  for (const std::uint64_t word : algorithm.algo.data) text += fmt::format("{:016x}", word);
  return text;
}

std::optional<GemmAlgorithm> algorithm_from_text(const std::string& text) {
  if (text.size() != kWords * kHexDigits) return std::nullopt;
  GemmAlgorithm algorithm;
  for (std::size_t i = 0; i < kWords; ++i) {
    const auto word = number_of<std::uint64_t>(std::string_view(text).substr(i * kHexDigits, kHexDigits), 16);
    if (!word) return std::nullopt;
    algorithm.algo.data[i] = *word;
  }
  return algorithm;
}

AlgorithmCache::AlgorithmCache(const std::string& folder, std::string machine) : machine_(std::move(machine)) {
  if (folder.empty()) return;
  path_ = fmt::format("{}/{}/{:016x}.txt", folder, kFolder, fnv1a(machine_));
  entries_ = read();
}

std::string AlgorithmCache::describe(const std::string& folder) {
  if (folder.empty()) return "not kept: SHERD_CACHE is set to nothing, or there is no home";
  std::error_code error;
  std::filesystem::path place = std::filesystem::path(folder) / kFolder;
  while (place.has_relative_path() && !std::filesystem::exists(place, error)) place = place.parent_path();
  if (place.empty()) place = ".";  // of a relative folder
  if (::access(place.c_str(), W_OK | X_OK) == 0 && std::filesystem::is_directory(place, error))
    return fmt::format("kept in {}/{}", folder, kFolder);
  return fmt::format("not kept: {} is no folder that can be written", place.string());
}

void AlgorithmCache::note(const std::string& what) {
  if (trouble_.empty()) trouble_ = fmt::format("{}: {}", path_, what);
}

AlgorithmCache::Entries AlgorithmCache::read() {
  // A named pipe would block for ever, so opening does not wait, and only a regular file is read.
  const Descriptor file(::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file) {
    if (errno != ENOENT) note(fmt::format("cannot be read: {}", std::strerror(errno)));
    return {};
  }
  std::error_code error;
  if (!std::filesystem::is_regular_file(path_, error)) {
    note("is no file");
    return {};
  }
  std::string bytes(kMaxBytes, '\0');
  const std::int64_t size = read_at(file.get(), 0, std::as_writable_bytes(std::span(bytes)));
  if (size < 0) {
    note(fmt::format("cannot be read: {}", std::strerror(errno)));
    return {};
  }
  bytes.resize(static_cast<std::size_t>(size));
  std::string_view rest = bytes;
  if (take_line(rest) != kTitle) {
    note("is no cache of matrix products; it will be replaced");
    return {};
  }
  if (const std::string_view machine = take_line(rest); machine != machine_) {
    note(fmt::format("was made on another machine ('{}'); it will be replaced", machine.substr(0, 200)));
    return {};
  }
  Entries entries;
  int damaged = 0;
  while (!rest.empty()) {
    if (auto entry = parse_line(take_line(rest))) entries.insert(std::move(*entry));
    else ++damaged;
  }
  if (damaged > 0) note(fmt::format("{} damaged line{} skipped", damaged, damaged == 1 ? "" : "s"));
  return entries;
}

std::optional<GemmAlgorithm> AlgorithmCache::find(const std::string& problem) const {
  const auto found = entries_.find(problem);
  return found == entries_.end() ? std::nullopt : algorithm_from_text(found->second);
}

void AlgorithmCache::keep(const std::string& problem, const GemmAlgorithm& algorithm) {
  const std::string text = to_text(algorithm);
  if (std::exchange(entries_[problem], text) == text) return;
  if (path_.empty() || !writable_) return;
  Entries all = entries_;
  all.merge(read());  // of other processes
  writable_ = write(all);
}

bool AlgorithmCache::write(const Entries& entries) {
  std::string text = fmt::format("{}\n{}\n", kTitle, machine_);
  for (const auto& [problem, algorithm] : entries) text += line_of(problem, algorithm);
  if (text.size() > kMaxBytes) {
    note("is full");
    return false;
  }
  static std::atomic<int> counter{0};  // ranks may be threads
  const std::string partial = fmt::format("{}.{}.{}", path_, ::getpid(), counter++);
  const auto failed = [&] {
    note(fmt::format("choices are not kept: {}", std::strerror(errno)));
    ::unlink(partial.c_str());
    return false;
  };
  std::error_code error;
  std::filesystem::create_directories(std::filesystem::path(path_).parent_path(), error);
  Descriptor file(::open(partial.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
  if (!file) return failed();
  for (std::string_view rest = text; !rest.empty();) {
    const ssize_t written = ::write(file.get(), rest.data(), rest.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return failed();
    rest.remove_prefix(static_cast<std::size_t>(written));
  }
  file.reset();
  if (::rename(partial.c_str(), path_.c_str()) != 0) return failed();
  return true;
}

}  // namespace sherd::cuda
