// A layout splits each dim into ranges. Up to two sharded dims become the rows and columns of a table whose cells name
// ranks; a rank is in a cell if the layout gives that box for its coordinates.
#include "dtensor/draw.h"

#include <algorithm>
#include <map>
#include <vector>

#include "runtime/memory/accounting.h"
#include "runtime/tensor/indices.h"

namespace sherd {

namespace {

using Coordinates = std::vector<int>;
using Range = Spec::Range;

constexpr std::size_t kMaxRows = 12, kMaxColumns = 6, kMaxRanks = 8;  // shown at most
constexpr std::size_t kEnds = 2;                                      // shown at either end of an abbreviated list

/// A layout of a tensor of `shape`, and the ranks of its mesh.
struct Picture {
  const Spec& spec;
  const Shape& shape;
  DeviceMesh mesh;
  std::vector<Coordinates> all;  // per rank, row-major
  std::vector<int> ranks;        // the same ranks as the root mesh numbers them
};

Picture picture_of(const Spec& spec, const Shape& shape) {
  Picture p{spec, shape, spec.mesh(), {}, {}};
  p.ranks = p.mesh.ranks();
  for (const int r : up_to(p.mesh.num_ranks())) p.all.push_back(p.mesh.coordinates_of(r));
  return p;
}

std::string text_of(Range range) { return fmt::format("{}:{}", range.begin, range.end); }

// The different non-empty ranges of a dim, in order.
std::vector<Range> ranges_of(const Picture& p, int dim) {
  std::vector<Range> ranges;
  for (const Coordinates& c : p.all) {
    const Range range = p.spec.range_at(dim, p.shape[dim], c);
    if (range.size() > 0 && std::find(ranges.begin(), ranges.end(), range) == ranges.end()) ranges.push_back(range);
  }
  std::sort(ranges.begin(), ranges.end(), [](Range a, Range b) { return a.begin < b.begin; });
  return ranges;
}

std::string joined(const std::vector<std::string>& words, std::string_view separator) {
  if (words.size() <= kMaxRanks) return fmt::format("{}", fmt::join(words, separator));
  return fmt::format("{}{}...{}{}", fmt::join(words.begin(), words.begin() + kEnds, separator), separator, separator,
                     fmt::join(words.end() - kEnds, words.end(), separator));
}

// The ranks `members`, joined by the reductions of the Partial axes from `axis` on; later axes reduce first.
std::string reduction_of(const Picture& p, const std::vector<std::size_t>& members, int axis) {
  while (axis < p.mesh.ndim() && !p.spec.placement(axis).is_partial()) ++axis;
  if (axis == p.mesh.ndim()) {
    std::vector<std::string> words;
    for (std::size_t i : members) words.push_back(std::to_string(p.ranks[i]));
    return joined(words, " ");
  }
  std::map<int, std::vector<std::size_t>> by_coordinate;
  for (std::size_t i : members) by_coordinate[p.all[i][static_cast<std::size_t>(axis)]].push_back(i);
  std::vector<std::string> words;
  for (const auto& [c, some] : by_coordinate) words.push_back(reduction_of(p, some, axis + 1));
  const ReduceKind kind = p.spec.placement(axis).reduce;
  if (words.size() == 1) return words[0];
  if (kind == ReduceKind::sum) return joined(words, "+");
  return fmt::format("{}({})", name(kind), joined(words, ","));
}

// The ranks of one box. A Partial value has a list of ranks for each coordinate along the Replicate axes.
std::string holders(const Picture& p, const std::vector<std::size_t>& members) {
  std::map<Coordinates, std::vector<std::size_t>> copies;
  for (std::size_t i : members) {
    Coordinates along;
    if (p.spec.is_partial())
      for (const int a : up_to(p.mesh.ndim()))
        if (p.spec.placement(a).is_replicate()) along.push_back(p.all[i][static_cast<std::size_t>(a)]);
    copies[along].push_back(i);
  }
  std::vector<std::string> words;
  for (const auto& [along, some] : copies) words.push_back(reduction_of(p, some, 0));
  return "rank " + joined(words, " or ");
}

// Which of n lines are shown: all, or the ends with -1 between them.
std::vector<int> shown(std::size_t n, std::size_t most) {
  std::vector<int> lines;
  for (const std::size_t i : up_to(n)) {
    if (n <= most || i < kEnds || i >= n - kEnds) lines.push_back(static_cast<int>(i));
    else if (i == kEnds) lines.push_back(-1);
  }
  return lines;
}

/// A table of text with lines between the cells.
std::string boxed(const std::string& corner, const std::vector<std::string>& columns,
                  const std::vector<std::string>& rows, const std::vector<std::vector<std::string>>& cells) {
  std::size_t left = corner.size();
  for (const std::string& row : rows) left = std::max(left, row.size());
  std::vector<std::size_t> widths;
  for (const std::size_t c : indices(cells[0])) {
    widths.push_back(c < columns.size() ? columns[c].size() : 0);
    for (const auto& row : cells) widths.back() = std::max(widths.back(), row[c].size());
  }
  std::string text, line(left + 1, ' ');
  for (std::size_t width : widths) line += "+" + std::string(width + 2, '-');
  line += "+\n";
  std::string head = fmt::format("{:>{}}", corner, left);
  for (const std::size_t c : indices(columns)) head += fmt::format("   {:<{}}", columns[c], widths[c]);
  head.erase(head.find_last_not_of(' ') + 1);
  if (!head.empty()) text += head + "\n";
  text += line;
  for (const std::size_t r : indices(rows)) {
    text += fmt::format("{:>{}} ", rows[r], left);
    for (const std::size_t c : indices(widths)) text += fmt::format("| {:<{}} ", cells[r][c], widths[c]);
    text += "|\n" + line;
  }
  return text;
}

// `down` and `across` are the dims of rows and columns; -1: one for all elements.
std::string draw_table(const Picture& p, int down, int across) {
  const auto ranges = [&](int dim) { return dim < 0 ? std::vector<Range>{{0, 1}} : ranges_of(p, dim); };
  const std::vector<Range> rows = ranges(down), columns = ranges(across);
  const auto holds = [&](const Coordinates& c, int dim, Range range) {
    return dim < 0 || p.spec.range_at(dim, p.shape[dim], c) == range;
  };
  const auto cell = [&](int row, int column) -> std::string {
    if (row < 0 || column < 0) return "...";
    std::vector<std::size_t> members;
    for (const std::size_t i : indices(p.all))
      if (holds(p.all[i], down, rows[static_cast<std::size_t>(row)]) &&
          holds(p.all[i], across, columns[static_cast<std::size_t>(column)]))
        members.push_back(i);
    return members.empty() ? "" : holders(p, members);
  };
  const auto label = [](const std::vector<Range>& of, int dim, int i) -> std::string {
    return i < 0 ? "..." : dim < 0 ? "all" : text_of(of[static_cast<std::size_t>(i)]);
  };
  std::vector<std::string> row_names, column_names;
  std::vector<std::vector<std::string>> cells;
  for (int r : shown(rows.size(), kMaxRows)) {
    row_names.push_back(label(rows, down, r));
    cells.emplace_back();
    for (int c : shown(columns.size(), kMaxColumns)) cells.back().push_back(cell(r, c));
  }
  if (across >= 0)
    for (int c : shown(columns.size(), kMaxColumns)) column_names.push_back(label(columns, across, c));
  const std::string corner = down >= 0 && across >= 0   ? fmt::format("dim {} \\ {}", down, across)
                             : down >= 0 || across >= 0 ? fmt::format("dim {}", std::max(down, across))
                                                        : "";
  return boxed(corner, column_names, row_names, cells);
}

std::string draw_list(const Picture& p) {
  std::string text;
  for (int i : shown(p.all.size(), kMaxRows)) {
    if (i < 0) {
      text += "...\n";
      continue;
    }
    std::vector<std::string> box;
    for (const int d : indices(p.shape))
      box.push_back(text_of(p.spec.range_at(d, p.shape[d], p.all[static_cast<std::size_t>(i)])));
    text += fmt::format("rank {:<4} [{}]\n", p.ranks[static_cast<std::size_t>(i)], fmt::join(box, ", "));
  }
  return text;
}

std::int64_t elements_at(const Picture& p, const Coordinates& c) {
  std::int64_t n = 1;
  for (const int d : indices(p.shape)) n *= p.spec.range_at(d, p.shape[d], c).size();
  return n;
}

std::string title(const Picture& p, DType dtype) {
  std::int64_t least = elements_at(p, p.all[0]), most = least;
  for (const Coordinates& c : p.all) {
    least = std::min(least, elements_at(p, c));
    most = std::max(most, elements_at(p, c));
  }
  std::string bytes = format_bytes(most * byte_size(dtype));
  if (least != most) bytes = fmt::format("{} to {}", format_bytes(least * byte_size(dtype)), bytes);
  return fmt::format("{}{}{} on {}, {} per rank", name(dtype), to_string(p.shape), p.spec.describe(), p.mesh.describe(),
                     bytes);
}

std::string empty_ranks(const Picture& p) {
  std::vector<std::string> words;
  for (const std::size_t i : indices(p.all))
    if (elements_at(p, p.all[i]) == 0) words.push_back(std::to_string(p.ranks[i]));
  if (words.empty() || words.size() == p.all.size()) return {};
  return fmt::format("nothing: rank {}\n", joined(words, " "));
}

}  // namespace

std::string draw(const Spec& spec, const Shape& shape, DType dtype) {
  spec.local_shape(shape);  // an Error if it shards a dim that the shape does not have
  const Picture p = picture_of(spec, shape);
  const std::string head = title(p, dtype) + "\n\n";
  if (numel(shape) == 0) return head + "no elements\n";
  std::vector<int> sharded;
  for (const int d : indices(shape))
    if (spec.num_shards(d) > 1) sharded.push_back(d);
  if (sharded.size() > 2) return head + draw_list(p) + empty_ranks(p);
  // Shards of the last dim are drawn side by side, as the columns of a matrix.
  const bool is_columns = sharded.size() == 1 && sharded[0] > 0 && sharded[0] == shape.size() - 1;
  const int down = sharded.empty() || is_columns ? -1 : sharded[0];
  const int across = is_columns || sharded.size() == 2 ? sharded.back() : -1;
  return head + draw_table(p, down, across) + empty_ranks(p);
}

std::string draw(const Tensor& tensor) {
  if (!tensor.is_distributed()) return describe(tensor) + "\n";
  return draw(Spec::from(tensor), tensor.shape(), tensor.dtype());
}

std::string describe_parts(const Tensor& tensor) {
  if (!tensor.is_distributed()) return fmt::format("{}, {}", describe(tensor), format_bytes(tensor.bytes()));
  return title(picture_of(Spec::from(tensor), tensor.shape()), tensor.dtype());
}

}  // namespace sherd
