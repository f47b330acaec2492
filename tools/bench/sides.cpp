#include "tools/bench/sides.h"

namespace sherd::bench {

Side& Sides::get(const SideKey& key, std::chrono::milliseconds patience) {
  auto at = running_.find(key);
  if (at == running_.end()) at = running_.emplace(key, std::make_unique<Side>(key.second, patience)).first;
  return *at->second;
}

void Sides::stop_all_but(const SideKey& key) {
  std::erase_if(running_, [&](const auto& entry) { return entry.first != key; });
}

}  // namespace sherd::bench
