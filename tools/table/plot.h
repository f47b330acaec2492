#pragma once
// Numbers over numbers, as a picture.
#include <string>
#include <utility>
#include <vector>

namespace sherd::table {

/// Its numbers are shown divided by `unit`.
struct Axis {
  std::string title;
  double least = 0, most = 0, unit = 1;
};

/// One of those that lie on each other: its height at each place of Plot::at.
struct Area {
  std::string name, color;
  std::vector<double> heights;
};

struct Mark {
  double x = 0, y = 0;
  std::string text;
};

struct Plot {
  std::string title;
  Axis x, y;
  std::vector<double> at;  ///< ascending
  std::vector<Area> areas;
  std::vector<Mark> line;    ///< points that are joined; their text shows where one points at them
  std::vector<Mark> levels;  ///< lines across, at y
  std::vector<Mark> marks;
  std::vector<std::string> about;  ///< lines below
};

/// The plots, one below the other, as one SVG document.
std::string to_svg(const std::vector<Plot>& plots);

}  // namespace sherd::table
