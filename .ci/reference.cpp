// A source that takes a known time to compile: how long g++ -O2 takes for it here, beside the seconds that
// tools/weight.toml records, says how fast this machine is (.ci/stages.py). It asks of the compiler what our sources do
// - headers of the standard library, instances of templates, loops to optimize - and includes none of them, so that it
// stays as it is. Change it only together with `reference` in tools/weight.toml.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

namespace reference {

template <class T, std::size_t kOp>
T apply(T a, T b) {
  if constexpr (kOp == 0) return static_cast<T>(a * b + static_cast<T>(1));
  if constexpr (kOp == 1) return std::max<T>(a, static_cast<T>(b - static_cast<T>(2)));
  if constexpr (kOp == 2) return static_cast<T>(std::sqrt(std::abs(static_cast<double>(a))) + static_cast<double>(b));
  if constexpr (kOp == 3) return a < b ? static_cast<T>(a - b) : static_cast<T>(3);
}

// A row of the table: an element-wise loop, a sum, and a place for each value in a sorted order.
template <class T, std::size_t kOp>
struct Row {
  static void map(std::span<T> out, std::span<const T> a, std::span<const T> b) {
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = apply<T, kOp>(a[i], b[i]);
  }
  static double sum(std::span<const T> a) {
    std::array<double, 8> lanes{};
    for (std::size_t i = 0; i < a.size(); ++i) lanes[i % 8] += static_cast<double>(apply<T, kOp>(a[i], a[i]));
    return std::accumulate(lanes.begin(), lanes.end(), 0.0);
  }
  static std::vector<std::size_t> order(std::span<const T> a) {
    std::vector<std::size_t> places(a.size());
    std::iota(places.begin(), places.end(), std::size_t{0});
    std::stable_sort(places.begin(), places.end(),
                     [&](std::size_t x, std::size_t y) { return apply<T, kOp>(a[x], a[y]) < a[y]; });
    return places;
  }
};

template <class T>
struct Entry {
  std::string name;
  std::function<void(std::span<T>, std::span<const T>, std::span<const T>)> map;
  std::function<double(std::span<const T>)> sum;
  std::function<std::vector<std::size_t>(std::span<const T>)> order;
};

template <class T>
class Table {
 public:
  template <std::size_t... kOps>
  explicit Table(std::index_sequence<kOps...>) {
    (add(std::make_shared<Entry<T>>(
         Entry<T>{"op" + std::to_string(kOps), Row<T, kOps>::map, Row<T, kOps>::sum, Row<T, kOps>::order})),
     ...);
  }
  const Entry<T>* find(std::string_view name) const {
    const auto at = by_name_.find(std::string(name));
    return at == by_name_.end() ? nullptr : at->second.get();
  }
  std::string describe() const {
    std::ostringstream text;
    std::map<std::string, double> sums;
    const std::array<T, 4> values{T{1}, T{2}, T{3}, T{4}};
    for (const auto& [name, entry] : by_name_) sums[name] = entry->sum(values);
    for (const auto& [name, sum] : sums) text << name << ' ' << sum << '\n';
    return text.str();
  }

 private:
  void add(std::shared_ptr<Entry<T>> entry) { by_name_.emplace(entry->name, std::move(entry)); }
  std::unordered_map<std::string, std::shared_ptr<Entry<T>>> by_name_;
};

using Ops = std::make_index_sequence<4>;
using Tables = std::tuple<Table<double>, Table<float>, Table<std::int64_t>, Table<std::int32_t>>;
using AnyTable =
    std::variant<const Table<double>*, const Table<float>*, const Table<std::int64_t>*, const Table<std::int32_t>*>;

std::string describe(std::size_t which) {
  static const Tables tables{Ops{}, Ops{}, Ops{}, Ops{}};
  const std::array<AnyTable, 4> all{&std::get<0>(tables), &std::get<1>(tables), &std::get<2>(tables),
                                    &std::get<3>(tables)};
  return std::visit([](const auto* table) { return table->describe() + (table->find("op1") ? "" : "?"); },
                    all.at(which));
}

}  // namespace reference
