#pragma once
// The rendezvous store: a few small keys that ranks leave for each other. Every call has a deadline.
#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "runtime/tensor/error.h"

namespace sherd {

/// Nobody has set a key in time; the store itself answers.
class KeyNotSet : public CommError {
 public:
  using CommError::CommError;
};

/// What may be wrong with the start of a job, in a clause: the server and ranks that cannot take part set it, and those
/// that wait for them show it.
inline constexpr std::string_view kStartTrouble = "sherd/trouble";

/// Keys up to 256 bytes, values up to 1 MiB. Calls block; what does not come in time is a CommError naming the
/// key and the seconds waited.
class Store {
 public:
  virtual ~Store() = default;
  virtual void set(std::string_view key, std::string_view value) = 0;
  /// Waits until the key exists; KeyNotSet after the deadline.
  virtual std::string get(std::string_view key, std::chrono::milliseconds deadline) = 0;
  /// Adds to a counter that starts at 0; returns the new value.
  virtual std::int64_t add(std::string_view key, std::int64_t amount) = 0;
  /// Forgets the key, if somebody has set it. A store that only few keys are left in may keep it.
  virtual void erase(std::string_view /*key*/) {}
  /// The store sets this by itself when the connection of this rank ends, however it ends; the last one given counts.
  virtual void set_at_end(std::string_view /*key*/, std::string_view /*value*/) {}
  /// Every rank has connected: what told them where the store is may go.
  virtual void all_have_connected() {}
};

}  // namespace sherd
