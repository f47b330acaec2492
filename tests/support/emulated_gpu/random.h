#pragma once
// The draws that decide what happens first: splitmix64 (Steele, Lea, Flood 2014).
#include <cstdint>

namespace sherd::cuda::emulated {

class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next() {
    std::uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  /// In [0, n).
  std::uint64_t below(std::uint64_t n) { return next() % n; }
  /// True once in n.
  bool once_in(std::uint64_t n) { return below(n) == 0; }

 private:
  std::uint64_t state_;
};

}  // namespace sherd::cuda::emulated
