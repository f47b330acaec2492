#pragma once
// Where the bytes of a storage are, as one value: for messages, and for who decides by it. It is derived
// (Storage::residency()); what a storage keeps is its address, its loans and whether it is a ghost's.
#include <cstdint>
#include <string_view>

namespace sherd {

enum class Residency : std::uint8_t {
  ghost,     ///< on an account only, or not even there: nobody reads or writes them on this rank
  present,   ///< in memory, and nobody waits to touch them
  released,  ///< given back, or kept aside; handles stay, restore_data() brings memory again, also if it is none
  lent,      ///< in memory, and a queue uses them
};

constexpr std::string_view name(Residency residency) {
  switch (residency) {
    case Residency::ghost: return "a ghost's";
    case Residency::present: return "present";
    case Residency::released: return "released";
    case Residency::lent: return "lent";
  }
  return "";
}

}  // namespace sherd
