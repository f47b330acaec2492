#pragma once
// Reads the oracle files of tests/golden (written by tools/golden/make_golden.py). A reader of its own, so that a fault
// of the library's checkpoint code cannot hide itself.
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace sherd::testing {

/// One stored tensor, dense and row-major. `dtype` is "F32" (values in f32) or "I64" (values in i64).
struct GoldenTensor {
  std::string dtype;
  std::vector<std::int64_t> shape;
  std::vector<float> f32;
  std::vector<std::int64_t> i64;
};

/// One file. Keys are "<case>.in.<input>", "<case>.out", "<case>.cotangent", "<case>.grad.<input>"; cases have
/// attributes. Every look-up of something that is not there is a std::out_of_range naming file and key.
class Golden {
 public:
  /// "norm" reads tests/golden/norm.safetensors; throws std::runtime_error saying what is wrong with the file.
  explicit Golden(std::string_view file);

  const GoldenTensor& at(const std::string& key) const;
  bool has(const std::string& key) const { return tensors_.contains(key); }
  const std::map<std::string, GoldenTensor>& tensors() const { return tensors_; }

  /// Names of the cases that start with `prefix`, sorted.
  std::vector<std::string> cases(std::string_view prefix = "") const;
  /// What follows "<case>.<part>." in the keys: names(c, "in") are the inputs of c, sorted.
  std::vector<std::string> names(const std::string& test_case, std::string_view part) const;
  /// Attributes of a case: numbers and integers, and booleans as flag().
  double number(const std::string& test_case, const std::string& attribute) const;
  std::int64_t integer(const std::string& test_case, const std::string& attribute) const;
  bool flag(const std::string& test_case, const std::string& attribute) const;

 private:
  std::string file_;
  std::map<std::string, GoldenTensor> tensors_;
  std::map<std::string, std::map<std::string, double>> attributes_;
};

}  // namespace sherd::testing
