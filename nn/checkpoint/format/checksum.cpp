#include "nn/checkpoint/format/checksum.h"

#define XXH_INLINE_ALL  // compiled in, as Boost and json are: users of libsherd.so need not have the library
#include <xxhash.h>

#include "runtime/tensor/error.h"
#include "runtime/tensor/quantity.h"

namespace sherd::ckpt {

struct Checksum::State {
  XXH64_state_t state;
};

Checksum::Checksum() : state_(std::make_unique<State>()) { XXH64_reset(&state_->state, 0); }
Checksum::Checksum(Checksum&&) noexcept = default;
Checksum& Checksum::operator=(Checksum&&) noexcept = default;
Checksum::~Checksum() = default;

void Checksum::add(std::span<const std::byte> bytes) {
  if (!bytes.empty()) XXH64_update(&state_->state, bytes.data(), bytes.size());
}

std::uint64_t Checksum::value() const { return XXH64_digest(&state_->state); }

std::uint64_t checksum(std::span<const std::byte> bytes) { return XXH64(bytes.data(), bytes.size(), 0); }

std::uint64_t checksum(std::string_view text) { return checksum(std::as_bytes(std::span(text))); }

std::string checksum_text(std::uint64_t value) { return fmt::format("{:016x}", value); }

std::uint64_t checksum_from_text(std::string_view text) {
  const std::optional<std::uint64_t> value = number_of<std::uint64_t>(text, 16);
  check(text.size() == 16 && value, "\"{}\" is no checksum; a checksum is 16 hexadecimal digits", text.substr(0, 40));
  return *value;
}

}  // namespace sherd::ckpt
