#pragma once
// What work takes, in seconds, as data: layouts of tensors and plans of steps are chosen by it. Nothing here measures;
// who has measured (compile/run/measure_prices.h) gives ranks one table, which is text for exchanges and files.
//
//   row 0.00041 matmul f32[768,128][128,1] ...        a call, by its key
//   link 2.1e-05 0 4.2e+09 gather dp#1                what ranks of a group do with a tensor
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>

namespace sherd {

/// What the ranks of a group do with a tensor.
enum class Movement : std::uint8_t { gather, scatter, reduce_all, all_to_all };
std::string_view name(Movement movement);

/// A link between the ranks of a group. The defaults are for processes that share memory: two of them on two cores take
/// 30 us for a row of 256 bytes, and all_gather 1 MB in 150 us and 16 MB in 2.4 ms.
struct LinkPrice {
  double call_seconds = 20e-6;
  double peer_seconds = 2e-6;
  double bytes_per_second = 4e9;

  /// call + (n-1) x peer + bytes x (n-1)/n / bytes_per_second. `bytes` are those of the full tensor; reduce_all is a
  /// scatter and a gather, and all_to_all packs and unpacks: both move their bytes twice.
  double seconds(Movement movement, int ranks, double bytes) const;
  friend bool operator==(const LinkPrice&, const LinkPrice&) = default;
};
/// Error naming `what`, with the numbers, unless they are finite, none is negative and the bandwidth is positive.
void check_price(const LinkPrice& price, std::string_view what);

/// Keys and names have no line feeds.
struct Prices {
  std::map<std::string, double, std::less<>> rows;      ///< seconds of one call, or of one unit of work, by key
  std::map<std::string, LinkPrice, std::less<>> links;  ///< by movement and group, see link_name()

  /// A line for each, in the order of keys; parse_prices() reads it.
  std::string print() const;
  friend bool operator==(const Prices&, const Prices&) = default;
};
/// "gather dp#1"
std::string link_name(Movement movement, std::string_view group);

/// Error with the line and what is wrong with it.
Prices parse_prices(std::string_view text);

}  // namespace sherd
