#include "tools/bench/sides.h"

#include <tuple>

namespace sherd::bench {

bool SideKey::operator<(const SideKey& other) const {
  return std::tie(role, command.words, command.environment) <
         std::tie(other.role, other.command.words, other.command.environment);
}

Side& Sides::get(const SideKey& key, std::chrono::milliseconds patience) {
  auto at = running_.find(key);
  if (at == running_.end()) at = running_.emplace(key, std::make_unique<Side>(key.command, patience)).first;
  return *at->second;
}

void Sides::stop_all_but(const SideKey& key) {
  std::erase_if(running_, [&](const auto& entry) { return entry.first < key || key < entry.first; });
}

}  // namespace sherd::bench
