#include "nn/checkpoint/format/saves.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <optional>
#include <string_view>
#include <system_error>
#include <tuple>

#include "nn/checkpoint/format/folders.h"
#include "runtime/tensor/error.h"

namespace sherd::ckpt {

namespace {

namespace fs = std::filesystem;

constexpr std::string_view kManifest = "manifest.json";

/// "step-000120", or "step-000120.1" where the first name was taken.
struct SaveName {
  std::int64_t step = 0, attempt = 0;
  auto operator<=>(const SaveName&) const = default;
};

bool take_number(std::string_view& text, std::size_t least_digits, std::int64_t& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const auto digits = static_cast<std::size_t>(end - text.data());
  if (error != std::errc() || digits < least_digits || text.front() == '-') return false;
  text.remove_prefix(digits);
  return true;
}

std::optional<SaveName> parse_save_name(std::string_view text) {
  SaveName name;
  if (!text.starts_with("step-")) return std::nullopt;
  text.remove_prefix(5);
  if (!take_number(text, 6, name.step)) return std::nullopt;
  if (text.empty()) return name;
  if (text.front() != '.') return std::nullopt;
  text.remove_prefix(1);
  return take_number(text, 1, name.attempt) && text.empty() ? std::optional(name) : std::nullopt;
}

/// "rank-00000.safetensors" or "manifest.json", complete or not.
bool is_file_of_save(std::string_view text) {
  constexpr std::string_view kPartial = ".partial", kSuffix = ".safetensors", kPrefix = "rank-";
  if (text.ends_with(kPartial)) text.remove_suffix(kPartial.size());
  if (text == kManifest) return true;
  if (!text.starts_with(kPrefix) || !text.ends_with(kSuffix)) return false;
  text.remove_prefix(kPrefix.size());
  std::int64_t rank = 0;
  return take_number(text, 5, rank) && text == kSuffix;
}

struct Found {
  SaveName name;
  fs::path folder;
  enum class Kind { committed, leftover, unknown } kind;  ///< unknown: the disk does not tell
};

/// Folders with names of saves, newest first.
std::vector<Found> find_folders(const fs::path& dir) {
  std::vector<Found> found;
  for (const auto& entry : fs::directory_iterator(dir)) {
    const auto name = parse_save_name(entry.path().filename().string());
    std::error_code error;
    const bool is_folder = name && !entry.is_symlink(error) && !error && entry.is_directory(error);
    if (!name || (!is_folder && !error)) continue;
    const bool is_committed = !error && fs::exists(entry.path() / kManifest, error);
    using enum Found::Kind;
    found.push_back({*name, entry.path(), error ? unknown : is_committed ? committed : leftover});
  }
  std::sort(found.begin(), found.end(), [](const Found& a, const Found& b) { return a.name > b.name; });
  return found;
}

/// Whether a save may be made there: nothing is, or a folder without a save, as a failed attempt leaves it. Through a
/// link it would go where no reader of the folder looks, and perhaps over what is another's.
bool is_free(const fs::path& place) {
  std::error_code error;
  const fs::file_type type = fs::symlink_status(place, error).type();
  if (type == fs::file_type::not_found) return true;
  check(!error, "cannot look for \"{}\": {}", place.string(), error.message());
  return type == fs::file_type::directory && !is_file_there((place / kManifest).string());
}

/// The manifest goes first: from then on it is no save. Where it stays, so does the save, whole.
void remove_save(const fs::path& folder) {
  std::error_code error, ignored;
  fs::remove(folder / kManifest, error);
  if (error) return;
  std::vector<fs::path> files;
  for (fs::directory_iterator at(folder, ignored), end; !ignored && at != end; at.increment(ignored))
    if (is_file_of_save(at->path().filename().string())) files.push_back(at->path());
  for (const fs::path& file : files) fs::remove(file, ignored);
  fs::remove(folder, ignored);  // only if empty
}

}  // namespace

std::vector<SavePlace> list_saves(const std::string& path) {
  std::vector<SavePlace> saves;
  std::error_code error;
  if (!is_file_there(path)) return saves;
  const bool is_folder = fs::is_directory(path, error);
  check(!error, "cannot look at \"{}\": {}", path, error.message());
  if (!is_folder) return saves;
  try {
    for (const Found& found : find_folders(path))
      if (found.kind != Found::Kind::leftover)  // of what may be a save its reader hears why it cannot be read
        saves.push_back({found.folder.string(), found.name.step});
  } catch (const fs::filesystem_error& problem) {
    fail("cannot read the folder \"{}\": {}", path, problem.code().message());
  }
  if (is_file_there((fs::path(path) / kManifest).string())) {
    const auto name = parse_save_name(fs::path(path).filename().string());
    saves.push_back({path, name ? name->step : 0});
  }
  return saves;
}

std::vector<std::string> links_newer_than_saves(const std::string& path) noexcept {
  std::vector<std::string> links;
  try {
    const std::vector<SavePlace> saves = list_saves(path);
    const std::optional<SaveName> newest =
        saves.empty() ? std::nullopt : parse_save_name(fs::path(saves.front().folder).filename().string());
    if (fs::is_directory(path))
      for (const auto& entry : fs::directory_iterator(path)) {
        const std::optional<SaveName> name = parse_save_name(entry.path().filename().string());
        if (name && entry.is_symlink() && (!newest || *name > *newest)) links.push_back(entry.path().string());
      }
  } catch (const std::exception&) {}
  std::ranges::sort(links);
  return links;
}

std::string newest_save(const std::string& path) {
  const std::vector<SavePlace> saves = list_saves(path);
  check(!saves.empty(),
        "no checkpoint: \"{}\" holds neither manifest.json nor a folder step-... with one; name a folder that a run "
        "saved to",
        path);
  return saves.front().folder;
}

std::string new_save_name(const std::string& dir, std::int64_t step) {
  const std::string first = fmt::format("step-{:06}", step);
  std::string name = first;
  for (int attempt = 1; !is_free(fs::path(dir) / name); ++attempt) name = fmt::format("{}.{}", first, attempt);
  return name;
}

void remove_older_saves(const std::string& dir, const std::string& name, const Retention& retention) noexcept {
  try {
    const std::optional<SaveName> own = parse_save_name(name);
    int kept = 1;
    for (const Found& found : find_folders(dir)) {
      if (found.folder.filename() == name || found.kind == Found::Kind::unknown) continue;
      const bool is_older = found.kind == Found::Kind::committed && own && found.name.step < own->step;
      const bool is_new = kept < retention.keep;
      const bool is_marked = retention.keep_every > 0 && found.name.step % retention.keep_every == 0;
      if (is_older && !retention.replace && (is_new || is_marked)) ++kept;
      else remove_save(found.folder);
    }
    std::error_code ignored;
    fs::remove(fs::path(dir) / kManifest, ignored);  // of the one save of an earlier format, whose folder has gone
  } catch (const std::exception&) {}
}

}  // namespace sherd::ckpt
