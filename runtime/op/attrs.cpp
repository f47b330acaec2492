#include "runtime/op/attrs.h"

#include <fmt/format.h>

namespace sherd {

namespace {
class Printer final : public AttrVisitor {
 public:
  void field(const char* key, bool value) override { put(key, value ? "true" : "false"); }
  void field(const char* key, std::int64_t value) override { put(key, fmt::to_string(value)); }
  void field(const char* key, double value) override { put(key, fmt::to_string(value)); }
  void field(const char* key, const Dims& value) override { put(key, to_string(value)); }
  void field(const char* key, DType value) override { put(key, std::string(name(value))); }
  void field(const char* key, const char* value) override { put(key, value); }
  std::string text;

 private:
  void put(const char* key, const std::string& value) {
    if (!text.empty()) text += ' ';
    text += key;
    text += '=';
    text += value;
  }
};
}  // namespace

std::string Attrs::print() const {
  Printer printer;
  visit(printer);
  return printer.text;
}

}  // namespace sherd
