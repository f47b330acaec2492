#pragma once
// Everything of Sherd that reads what others wrote: files, texts, and messages on a socket.
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace sherd::testing {

/// Reads altered inputs. What it refuses is a sherd::Error; anything else than that or a return is a fault.
class HostileReader {
 public:
  virtual ~HostileReader() = default;
  /// Inputs that are accepted as they are.
  virtual std::vector<std::string> samples() = 0;
  virtual void read(const std::string& input) = 0;
  /// Wraps an altered sample where a checksum would hide what lies behind it.
  virtual std::string sealed(const std::string& input) { return input; }
  /// The most bytes of an input.
  virtual std::size_t largest() const { return std::size_t{8} << 20; }
  /// Whether a sample of which one bit is flipped must be refused.
  virtual bool finds_every_bit() const { return false; }
};

struct HostileTarget {
  std::string_view name;
  /// Memory that reading takes however short the input is, beyond three times the bytes of the input.
  std::int64_t fixed_bytes;
  std::function<std::unique_ptr<HostileReader>()> open;  ///< in the process that reads
  double seconds = 1;                                    ///< for an input of less than a megabyte
};

const std::vector<HostileTarget>& hostile_targets();
/// Targets of what is read to plan a training and to say why one is slow, which are among those.
std::vector<HostileTarget> hostile_prices();
/// All of a file.
std::string text_of_file(const std::string& path);

}  // namespace sherd::testing
