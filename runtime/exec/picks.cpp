#include "runtime/exec/picks.h"

#include "runtime/exec/context.h"
#include "runtime/os/settings.h"

namespace sherd {

namespace {
constexpr std::string_view kEquals = " = ";
}  // namespace

bool is_requested_reproducible() { return text_of(process_environment(), "SHERD_REPRODUCIBLE") == "1"; }

Picks::Picks() : is_reproducible(is_requested_reproducible()) {}

std::optional<std::string> Picks::find(const std::string& key) const {
  const auto found = picks_.find(key);
  return found == picks_.end() ? std::nullopt : std::optional(found->second);
}

std::string Picks::find_or_make(const std::string& key, const Make& make) {
  if (const std::optional<std::string> own = find(key)) return *own;
  return picks_[key] = share_ ? share_(key, make) : make();
}

std::string Picks::text() const {
  std::string text;
  for (const auto& [key, pick] : picks_) text += fmt::format("{}{}{}\n", key, kEquals, pick);
  return text;
}

void Picks::load(std::string_view text) {
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    if (const std::size_t at = line.rfind(kEquals); at != line.npos)
      picks_.emplace(line.substr(0, at), line.substr(at + kEquals.size()));
  }
}

Picks& picks_of_rank() { return RankContext::current().state<Picks>(); }

}  // namespace sherd
