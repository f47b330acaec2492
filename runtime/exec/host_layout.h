#pragma once
// Which ranks share a host, and which hosts a group of ranks spans. Ranks have the numbers of the job.
//
//   16 ranks on 2 hosts, mesh replicate=2,dp=8:
//     dp         8x1   ranks 0..7, 8..15          within a host
//     replicate  2x8   ranks 0,8  1,9  ..  7,15   8 groups, which share the NICs of their hosts
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace sherd {

/// The ranks of a group as a grid in the numbering of the job, and all groups like it: a rank's peers differ from it in
/// the grid's digits only.
class RankGrid {
 public:
  struct Dim {
    int size, stride;
    friend bool operator==(const Dim&, const Dim&) = default;
  };
  /// A rank alone.
  RankGrid() = default;
  /// Slowest first; sizes over 1. Error unless each stride is a multiple of what the next dim covers.
  explicit RankGrid(std::vector<Dim> dims);
  /// The grid that these ranks are one group of. Error naming them if they are none.
  static RankGrid of(std::span<const int> ranks);
  /// "2x8,4x1": sizes and strides; "1" of a rank alone. parse() reads it; Error naming the text.
  std::string text() const;
  static RankGrid parse(std::string_view text);

  int size() const;
  const std::vector<Dim>& dims() const { return dims_; }
  /// The lowest rank of the group that `rank` is in.
  int first(int rank) const;
  /// Its ranks, in order.
  std::vector<int> members(int rank) const;
  /// Error unless groups of this grid divide the numbers 0 .. ranks-1.
  void check_divides(int ranks) const;
  friend bool operator==(const RankGrid&, const RankGrid&) = default;

 private:
  std::vector<Dim> dims_;
};

struct HostLayout {
  enum class Order : std::uint8_t { by_host, round_robin };  ///< ranks 0, 1, ... of one host, or of one after the other

  int hosts = 1, per_host = 1;
  Order order = Order::by_host;

  int ranks() const { return hosts * per_host; }
  int host_of(int rank) const { return order == Order::by_host ? rank / per_host : rank % hosts; }
  std::string text() const;  ///< "2 hosts x 8 ranks"
};
/// The layout of `ranks` ranks by the flags --hosts and --per-host, of which any may be missing: one says the other,
/// and without both there is one host. Error naming the flags and their values unless hosts x per-host is `ranks`.
HostLayout host_layout(int ranks, std::optional<int> hosts, std::optional<int> per_host);

/// A group on its hosts.
struct GroupSpan {
  int hosts = 1;     ///< that its ranks are on
  int per_host = 1;  ///< most of its ranks on one of them
  int sharing = 1;   ///< most groups like it, itself among them, that leave one of its hosts
};
GroupSpan span_of(const RankGrid& grid, const HostLayout& hosts, int rank);

/// Names of fabrics: "in=nvlink4,out=ib400x1", or "in=nvlink4" alone. Error naming --fabric and the text.
struct FabricNames {
  std::string in, out;
};
FabricNames parse_fabric_names(std::string_view text);

}  // namespace sherd
