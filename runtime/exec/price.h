#pragma once
// What work takes, in seconds, as data: layouts of tensors, plans of steps and predictions of runs are made by it.
// Nothing here measures; who has measured (compile/run/measure_prices.h) gives ranks one table, which is text for
// exchanges and files. Models of devices and fabrics are JSON (price_json.h).
//
//   row 0.00041 matmul f32[768,128][128,1] ...        a call, by its key
//   link 2.1e-05 0 4.2e+09 gather dp#1                what ranks of a group do with a tensor
#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/tensor/dtype.h"

namespace sherd {

/// What the ranks of a group do with a tensor.
enum class Movement : std::uint8_t { gather, scatter, reduce_all, all_to_all };
inline constexpr int kNumMovements = 4;
std::string_view name(Movement movement);

/// Bytes that a rank sends of a tensor of `bytes`, which is as many as it receives: (n-1)/n of them, twice for
/// reduce_all, which is a scatter and a gather.
double wire_bytes(Movement movement, int ranks, double bytes);

/// A link between the ranks of a group. The defaults are for processes that share memory: two of them on two cores take
/// 30 us for a row of 256 bytes, and all_gather 1 MB in 150 us and 16 MB in 2.4 ms.
struct LinkPrice {
  double call_seconds = 20e-6;
  double peer_seconds = 2e-6;
  double bytes_per_second = 4e9;

  /// call + (n-1) x peer + bytes x (n-1)/n / bytes_per_second. `bytes` are those of the full tensor; reduce_all is a
  /// scatter and a gather, and all_to_all packs and unpacks: both move their bytes twice.
  double seconds(Movement movement, int ranks, double bytes) const;
  /// What bytes take on the link, beside the call.
  double carry_seconds(double bytes) const;
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

// ---- models of what is not here ----

/// A number and where it is from: a data sheet, a measurement.
struct Quoted {
  double value = 0;
  std::string source;
};

/// Work per second by the size of one call, in FLOPs or bytes.
struct Rate {
  struct Point {
    double size, per_second;
  };
  std::vector<Point> points{};  ///< by size, at least one; one point is a rate of all sizes
  std::string source;
  bool is_extrapolated = false;  ///< it is of other work than it stands for: of another type

  /// Linear in the logarithm of the size between points; outside of them the nearest point's.
  double at(double size) const;
  /// Whether a size lies between the points, or there is one point alone, of a rate that is not extrapolated itself.
  /// A prediction elsewhere is extrapolated.
  bool covers(double size) const;
};

/// How a link between ranks is priced: by latency and bandwidth, or by measured seconds where there are some.
struct FabricModel {
  struct Point {
    int ranks;
    double bytes, seconds;  ///< of the full tensor
  };
  std::string name;
  LinkPrice link;  ///< of one rank, or of one NIC
  int nics = 0;    ///< of a host, which its ranks share; 0: each rank has a link of its own
  std::array<std::vector<Point>, kNumMovements> curves{};  ///< by movement, then ranks, then bytes; empty: by `link`
  std::string source;

  /// Seconds of a collective of `ranks` ranks on a tensor of `bytes`. Between the measured bytes, and the measured
  /// numbers of ranks, it is linear; beyond the last bytes it goes on as between the last two, and other numbers of
  /// ranks are as the nearest, times what `link` says of both.
  double seconds(Movement movement, int ranks, double bytes) const;
  /// Whether the measured points lie around the call, or `link` prices it.
  bool covers(Movement movement, int ranks, double bytes) const;
  /// The same with other bytes per second; measured seconds shrink as many times as those grow.
  FabricModel with_rate(double rate) const;
};

/// What a call computes, as a rate counts it.
enum class WorkKind : std::uint8_t {
  contraction,  ///< products of matrices, by FLOPs
  attention,    ///< by FLOPs
  pointwise,    ///< by bytes, as all that follow
  reduction,    ///< norms, losses, sums
  copy,         ///< casts, layouts, fills
  optimizer,    ///< updates in place
  issue,        ///< computes nothing: allocates, frees, hands work to a queue
};
inline constexpr int kNumWorkKinds = 7;
std::string_view name(WorkKind kind);
/// Error that lists the kinds for a text that names none.
WorkKind work_kind_from_name(std::string_view text);

struct CallWork {
  WorkKind kind = WorkKind::issue;
  DType dtype = DType::f32;  ///< of the first floating input, or of the result
  double flops = 0, bytes = 0;
  friend bool operator==(const CallWork&, const CallWork&) = default;
};

/// One device and the software on it.
struct DeviceModel {
  std::string name;
  int cores = 1;
  std::int64_t memory_bytes = 0;
  double call_seconds = 0;                        ///< of each call beside its work: launch_s
  double peak_flops = 0;                          ///< by which MFU counts, of the type that computes; 0: none is said
  std::map<DType, Rate> products{}, attention{};  ///< FLOP/s by FLOPs of a call
  Rate read{}, copied{};                          ///< bytes/s; what rows of no rate of their own take
  std::map<WorkKind, Rate> rows{};                ///< bytes/s by bytes of a call
  std::map<std::string, FabricModel, std::less<>> links{};
  std::map<std::string, Quoted, std::less<>> software{};  ///< factors of compute seconds, fitted on one named row each
  std::string source;

  /// call_seconds and, of products and attention, the longer of FLOPs at their rate and bytes at `read`, of others the
  /// bytes at the rate of their kind. Error naming the type and the device for products of a type without a rate.
  double seconds(const CallWork& work) const;
  /// Whether the rates cover the call.
  bool covers(const CallWork& work) const;
  /// Seconds of a copy to memory or files of the host, or back: over the link "host", if there is one; a device without
  /// is the host, which copies.
  double home_seconds(double bytes) const;
};

}  // namespace sherd
