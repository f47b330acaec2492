#include "tests/support/emulated_gpu/symbols.h"

#include <dlfcn.h>
#include <elf.h>

#include <fstream>
#include <iterator>
#include <map>
#include <mutex>
#include <vector>

#include "runtime/cuda/device/kernel_name.h"

namespace sherd::cuda::emulated {

namespace {

using Names = std::map<std::uintptr_t, std::string>;  // offset in the file's image -> symbol

// dladdr() knows exported functions only; kernels are often local, so .symtab is read.
Names read_functions(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::vector<char> bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  Names names;
  if (bytes.size() < sizeof(Elf64_Ehdr)) return names;
  const auto* header = reinterpret_cast<const Elf64_Ehdr*>(bytes.data());
  const auto* sections = reinterpret_cast<const Elf64_Shdr*>(bytes.data() + header->e_shoff);
  for (int i = 0; i < header->e_shnum; ++i) {
    if (sections[i].sh_type != SHT_SYMTAB) continue;
    const auto* symbols = reinterpret_cast<const Elf64_Sym*>(bytes.data() + sections[i].sh_offset);
    const char* strings = bytes.data() + sections[sections[i].sh_link].sh_offset;
    for (std::size_t s = 0; s < sections[i].sh_size / sizeof(Elf64_Sym); ++s)
      if (ELF64_ST_TYPE(symbols[s].st_info) == STT_FUNC && symbols[s].st_value != 0)
        names[symbols[s].st_value] = strings + symbols[s].st_name;
  }
  return names;
}

}  // namespace

const std::string& mangled_name(const void* function) {
  static std::mutex lock;
  static std::map<std::string, Names> files;
  static const std::string unknown;
  const std::lock_guard guard(lock);
  Dl_info info{};
  if (!dladdr(function, &info) || !info.dli_fname) return unknown;
  auto file = files.find(info.dli_fname);
  if (file == files.end()) file = files.emplace(info.dli_fname, read_functions(info.dli_fname)).first;
  const auto offset = reinterpret_cast<std::uintptr_t>(function) - reinterpret_cast<std::uintptr_t>(info.dli_fbase);
  auto name = file->second.find(offset);
  return name == file->second.end() ? unknown : name->second;
}

std::string readable_name(const void* function) {
  static std::mutex lock;
  static std::map<const void*, std::string> known;
  const std::lock_guard guard(lock);
  if (const auto found = known.find(function); found != known.end()) return found->second;
  return known[function] = readable_kernel(mangled_name(function).c_str());
}

}  // namespace sherd::cuda::emulated
