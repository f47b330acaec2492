#include "runtime/os/machine.h"

#include <elf.h>
#include <link.h>

#include <cstdint>
#include <cstring>
#include <fstream>
#include <span>
#include <string_view>
#include <utility>

#include <fmt/format.h>

namespace sherd {

namespace {

// The build among the notes of a segment: { size of the name, size of the text, type, name, text }, each of whole
// words.
std::string build_note(std::string_view notes) {
  const auto words = [](std::uint32_t bytes) { return (std::size_t{bytes} + 3) / 4 * 4; };
  while (notes.size() >= sizeof(ElfW(Nhdr))) {
    ElfW(Nhdr) note;
    std::memcpy(&note, notes.data(), sizeof(note));
    const std::size_t begin = sizeof(note) + words(note.n_namesz), end = begin + words(note.n_descsz);
    if (end > notes.size()) return "";
    if (note.n_type == NT_GNU_BUILD_ID) {
      std::string text;
      for (const char c : notes.substr(begin, note.n_descsz))
        text += fmt::format("{:02x}", static_cast<unsigned char>(c));
      return text;
    }
    notes.remove_prefix(end);
  }
  return "";
}

// Called for each object that is loaded; 1 ends it, at the one that this function is in.
int look_at(dl_phdr_info* object, std::size_t, void* result) {
  const std::span segments(object->dlpi_phdr, object->dlpi_phnum);
  const auto here = reinterpret_cast<std::uintptr_t>(&look_at);
  bool is_ours = false;
  for (const ElfW(Phdr) & segment : segments) {
    const std::uintptr_t begin = object->dlpi_addr + segment.p_vaddr;
    is_ours = is_ours || (segment.p_type == PT_LOAD && here >= begin && here - begin < segment.p_memsz);
  }
  if (!is_ours) return 0;
  for (const ElfW(Phdr) & segment : segments) {
    if (segment.p_type != PT_NOTE) continue;
    const auto* const begin = reinterpret_cast<const char*>(object->dlpi_addr + segment.p_vaddr);
    if (std::string text = build_note({begin, segment.p_memsz}); !text.empty())
      *static_cast<std::string*>(result) = std::move(text);
  }
  return 1;
}

}  // namespace

std::string cpu_model() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);)
    if (const std::size_t at = line.find(": "); line.starts_with("model name") && at != line.npos)
      return line.substr(at + 2);
  return "unknown";
}

std::string build_id() {
  std::string id;
  ::dl_iterate_phdr(look_at, &id);
  return id;
}

}  // namespace sherd
