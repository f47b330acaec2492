#include "runtime/cuda/device/kernel_name.h"

#include <cxxabi.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <memory>

#include <cuda_runtime_api.h>

namespace sherd::cuda {

namespace {

bool is_name(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; }

void erase_all(std::string& text, const std::string& part) {
  for (std::size_t at; (at = text.find(part)) != std::string::npos;) text.erase(at, part.size());
}

}  // namespace

const char* kernel_symbol(const void* kernel) {
  const char* symbol = nullptr;
  if (cudaFuncGetName(&symbol, kernel) == cudaSuccess) return symbol;
  (void)cudaGetLastError();  // no error of the program's
  return nullptr;
}

std::string readable_kernel(const char* symbol) {
  if (!symbol || !*symbol) return "a kernel without a name";
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> text(abi::__cxa_demangle(symbol, nullptr, nullptr, &status), std::free);
  std::string name = status == 0 ? text.get() : symbol;
  // "void a::(anonymous namespace)::scale<float>(float*, int)": the parameters go, then what stands before the name.
  erase_all(name, "(anonymous namespace)::");
  erase_all(name, "sherd::cuda::");
  erase_all(name, "sherd::");
  int depth = 0;
  for (std::size_t i = 0; i < name.size(); ++i) {
    if (name[i] == '<') ++depth;
    else if (name[i] == '>') --depth;
    else if (name[i] == '(' && depth == 0) name.resize(i);
  }
  std::size_t start = std::min(name.find('<'), name.size());
  while (start > 0 && is_name(name[start - 1])) --start;
  return name.substr(start);
}

}  // namespace sherd::cuda
