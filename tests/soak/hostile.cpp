// Alters what Sherd reads, at random, and reads it: each input is refused by a sherd::Error or accepted, in time and
// memory in proportion to its size. A process reads a batch, so that one that dies or hangs costs the others nothing;
// its number repeats it: soak_hostile --seed S --only TARGET:I.
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <random>
#include <span>

#include <fmt/format.h>

#include "runtime/tensor/error.h"
#include "tests/soak/hostile_targets.h"
#ifndef __SANITIZE_ADDRESS__
#include "tests/support/counting_new.h"
#endif

namespace sherd::testing {

namespace {

constexpr int kBatch = 200;
#ifdef __SANITIZE_ADDRESS__
constexpr double kSlower = 10;
#else
constexpr double kSlower = 1;
#endif

struct Options {
  int inputs = 80'000;
  std::uint64_t seed = 1;
  std::string only_target;
  int only = -1;
};

// ---- altered inputs ----

struct Input {
  std::string bytes;
  bool is_one_bit = false;  ///< a sample but for one bit
};

class Drawer {
 public:
  Drawer(std::uint64_t seed, std::size_t target, int input)
      : random_(seed * 1'000'003 + target * 1'000'000'007 + static_cast<std::uint64_t>(input)) {}

  Input draw(const std::vector<std::string>& samples, HostileReader& reader) {
    Input input{samples[below(samples.size())]};
    if (reader.finds_every_bit() && below(2) == 0) {
      flip_bit(input.bytes);
      input.is_one_bit = true;
      return input;
    }
    for (std::size_t edits = 1 + below(4); edits > 0; --edits) alter(input.bytes);
    if (below(20) == 0) input.bytes.resize(below(input.bytes.size() + 1));
    if (below(100) == 0) repeat(input.bytes, reader.largest());
    input.bytes = reader.sealed(input.bytes);
    return input;
  }

 private:
  std::size_t below(std::size_t n) { return std::uniform_int_distribution<std::size_t>(0, n - 1)(random_); }

  void flip_bit(std::string& text) {
    char& byte = text[below(text.size())];
    byte = static_cast<char>(static_cast<unsigned char>(byte) ^ (1U << below(8)));
  }

  void alter(std::string& text) {
    constexpr std::string_view kSigns = "{}[]()<>\"',:;=/\\#.-+0123456789eEtfnu \n\t\r\x01\x7f\xc3\xff";
    constexpr std::string_view kNumbers[] = {
        "0", "-1",  "9223372036854775807", "18446744073709551616", "1e3",        "1e999",
        "3", "nan", "4294967296",          "-9223372036854775808", "99999999999"};
    if (text.empty()) return text.push_back(kSigns[below(kSigns.size())]);
    const std::size_t at = below(text.size()), length = 1 + below(std::min<std::size_t>(24, text.size() - at));
    switch (below(8)) {
      case 0: text[at] = kSigns[below(kSigns.size())]; break;
      case 1: text.erase(at, length); break;
      case 2: text.insert(at, text.substr(below(text.size()), length)); break;
      case 3: text.insert(at, 1, kSigns[below(kSigns.size())]); break;
      case 4: flip_bit(text); break;
      case 5: text[at] = static_cast<char>(below(256)); break;
      case 6: std::swap(text[at], text[below(text.size())]); break;
      default:
        if (const std::size_t digit = text.find_first_of("0123456789", at); digit != text.npos)
          text.replace(digit, 1, kNumbers[below(std::size(kNumbers))]);
    }
  }

  // A part of it many times: depth, length, and what takes quadratic time.
  void repeat(std::string& text, std::size_t largest) {
    if (text.empty()) return;
    const std::size_t at = below(text.size()), length = 1 + below(std::min<std::size_t>(200, text.size() - at));
    const std::string part = text.substr(at, length);
    std::string parts;
    for (std::size_t left = (largest - std::min(largest, text.size())) / length; left > 0; --left) parts += part;
    text.insert(at, parts);
  }

  std::mt19937_64 random_;
};

// ---- one input ----

double limit_of(const Input& input, const HostileTarget& target) {
  return kSlower * target.seconds * std::max(1.0, static_cast<double>(input.bytes.size()) / 1e6);
}

/// What a reading process says of itself, in memory that it shares.
struct Progress {
  std::atomic<int> input{-1};
  std::atomic<int> faults{0}, one_bit{0};
  std::atomic<std::int64_t> most_bytes{0};  // of a target, beyond three times the input's
};

/// What went wrong, or nothing.
std::optional<std::string> read_one(HostileReader& reader, const Input& input, const HostileTarget& target,
                                    [[maybe_unused]] Progress& progress) {
  std::string fault;
  const auto start = std::chrono::steady_clock::now();
  ::alarm(static_cast<unsigned>(5 + 10 * limit_of(input, target)));  // kills a process that hangs
  const auto call = [&] {
    try {
      reader.read(input.bytes);
      if (input.is_one_bit) fault = "one bit was flipped, and it was accepted";
    } catch (const Error& error) {
      if (std::string_view(error.what()).empty()) fault = "an Error without a message";
    } catch (const std::exception& error) { fault = fmt::format("{}, which is no Error", error.what()); }
  };
#ifdef __SANITIZE_ADDRESS__
  call();
#else
  const std::int64_t size = static_cast<std::int64_t>(input.bytes.size());
  const std::int64_t peak = heap_peak_of_all_threads(call);
  progress.most_bytes = std::max<std::int64_t>(progress.most_bytes, peak - 3 * size);
  if (fault.empty() && peak > 3 * size + target.fixed_bytes)
    fault = fmt::format("{} bytes of memory, more than 3 x {} + {}", peak, size, target.fixed_bytes);
#endif
  ::alarm(0);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  if (fault.empty() && took.count() > limit_of(input, target)) fault = fmt::format("takes {:.1f} s", took.count());
  if (fault.empty()) return std::nullopt;
  return fault;
}

// ---- batches ----

struct Batch {
  std::size_t target = 0;
  int first = 0, last = 0;
};

void report(const Options& options, const Batch& batch, int input, std::size_t bytes, std::string_view fault) {
  fmt::print(stderr, "seed {}, {}:{} ({} bytes): {}\n", options.seed, hostile_targets()[batch.target].name, input,
             bytes, fault);
}

void read_batch(const Options& options, const Batch& batch, Progress& progress) {
  const HostileTarget& target = hostile_targets()[batch.target];
  const std::unique_ptr<HostileReader> reader = target.open();
  const std::vector<std::string> samples = reader->samples();
  for (int i = batch.first; i < batch.last; ++i) {
    progress.input = i;
    const Input input = Drawer(options.seed, batch.target, i).draw(samples, *reader);
    if (options.only >= 0) std::fwrite(input.bytes.data(), 1, input.bytes.size(), stdout);
    if (input.is_one_bit) ++progress.one_bit;
    const std::optional<std::string> fault = read_one(*reader, input, target, progress);
    if (!fault) continue;
    ++progress.faults;
    report(options, batch, i, input.bytes.size(), *fault);
  }
}

/// Reads a batch in processes: one more after each that died.
int faults_of(const Options& options, Batch batch, Progress& progress) {
  int died = 0;
  while (batch.first < batch.last) {
    progress.input = batch.first;
    std::fflush(nullptr);
    const pid_t child = ::fork();
    check(child >= 0, "cannot fork: {}", std::strerror(errno));
    if (child == 0) {
      try {
        read_batch(options, batch, progress);
      } catch (const std::exception& error) {
        fmt::print(stderr, "{}: {}\n", hostile_targets()[batch.target].name, error.what());
        std::_Exit(3);
      }
      std::fflush(nullptr);
      std::_Exit(0);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) break;
    check(!WIFEXITED(status) || WEXITSTATUS(status) != 3, "{} reads no sample", hostile_targets()[batch.target].name);
    ++died;
    report(options, batch, progress.input, 0,
           WIFSIGNALED(status) ? fmt::format("killed by {}", ::strsignal(WTERMSIG(status)))
                               : fmt::format("ended with status {}", WEXITSTATUS(status)));
    batch.first = progress.input + 1;
  }
  return died;
}

int soak(const Options& options) {
  void* const shared = ::mmap(nullptr, sizeof(Progress), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  check(shared != MAP_FAILED, "cannot map memory: {}", std::strerror(errno));
  Progress& progress = *new (shared) Progress;
  const std::vector<HostileTarget>& targets = hostile_targets();
  const int each = (options.inputs + static_cast<int>(targets.size()) - 1) / static_cast<int>(targets.size());
  int died = 0, read = 0;
  for (std::size_t t = 0; t < targets.size(); ++t) {
    if (!options.only_target.empty() && targets[t].name != options.only_target) continue;
    const int first = std::max(options.only, 0), last = options.only < 0 ? each : options.only + 1;
    for (int i = first; i < last; i += kBatch) died += faults_of(options, {t, i, std::min(i + kBatch, last)}, progress);
    if (const std::int64_t most = progress.most_bytes.exchange(0); most > 0)
      fmt::print(stderr, "{}: at most 3 x its bytes and {} KiB of memory\n", targets[t].name, most >> 10);
    read += last - first;
  }
  check(read > 0, "no target is called '{}'", options.only_target);
  const int faults = died + progress.faults;
  fmt::print(stderr, "soak: {} of {} inputs failed, {} of them of one flipped bit each; seed {}\n", faults, read,
             progress.one_bit.load(), options.seed);
  return faults == 0 ? 0 : 1;
}

Options parse(std::span<char*> arguments) {
  Options options;
  for (std::size_t i = 0; i < arguments.size(); i += 2) {
    const std::string_view flag = arguments[i];
    check(i + 1 < arguments.size(), "{} needs a value", flag);
    const std::string value = arguments[i + 1];
    if (flag == "--inputs") options.inputs = std::stoi(value);
    else if (flag == "--seed") options.seed = std::stoull(value);
    else if (flag == "--only") {
      const std::size_t colon = value.find(':');
      options.only_target = value.substr(0, colon);
      if (colon != value.npos) options.only = std::stoi(value.substr(colon + 1));
    } else fail("unknown flag '{}'; there are --inputs N, --seed S and --only TARGET[:INPUT]", flag);
  }
  return options;
}

}  // namespace

}  // namespace sherd::testing

int main(int argc, char** argv) {
  using namespace sherd::testing;
  try {
    return soak(parse({argv + 1, static_cast<std::size_t>(argc - 1)}));
  } catch (const std::exception& error) {
    fmt::print(stderr, "soak_hostile: {}\n", error.what());
    return 2;
  }
}
