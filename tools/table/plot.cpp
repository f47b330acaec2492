#include "tools/table/plot.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "runtime/tensor/indices.h"
#include "tools/table/svg.h"

namespace sherd::table {

namespace {

constexpr int kPlotLeft = 70, kPlotWidth = 900, kPlotHeight = 280, kPlotTop = 52, kPlotBottom = 46, kPlotMargin = 16,
              kPlotLine = 16;

// The least of 1, 2 and 5 times a power of ten of which at most six cover `range`.
double step_of(double range) {
  const double power = std::pow(10, std::floor(std::log10(range / 6)));
  for (const double factor : {1.0, 2.0, 5.0})
    if (6 * factor * power >= range) return factor * power;
  return 10 * power;
}

class Drawing {
 public:
  Drawing(const Plot& plot, double top) : plot_(plot), top_(top) {}

  std::string text() const {
    std::string text = text_at(kPlotLeft, top_ + 14, plot_.title, "class=\"t\"") + legend() + areas();
    text += axis(plot_.x, true) + axis(plot_.y, false);
    for (const Mark& level : plot_.levels) {
      text += line(kPlotLeft, y(level.y), kPlotLeft + kPlotWidth, y(level.y),
                   "stroke=\"#d62728\" stroke-dasharray=\"6 4\"");
      text += text_at(kPlotLeft + kPlotWidth - 4, y(level.y) - 5, level.text, "class=\"n\" text-anchor=\"end\"");
    }
    for (std::size_t i = 1; i < plot_.line.size(); ++i) {
      const Mark &a = plot_.line[i - 1], &b = plot_.line[i];
      text += line(x(a.x), y(a.y), x(b.x), y(b.y), "stroke=\"#3b6ea8\" stroke-width=\"2\"");
    }
    for (const Mark& point : plot_.line) text += dot(point, "#3b6ea8");
    text += labels();
    double below = top_ + kPlotTop + kPlotHeight + kPlotBottom;
    for (const std::string& about : plot_.about) text += text_at(kPlotLeft, below += kPlotLine, about, "class=\"n\"");
    return text;
  }

 private:
  static double part(double value, const Axis& axis) { return (value - axis.least) / (axis.most - axis.least); }
  double x(double value) const { return kPlotLeft + kPlotWidth * part(value, plot_.x); }
  double y(double value) const { return top_ + kPlotTop + kPlotHeight * (1 - part(value, plot_.y)); }

  static std::string line(double x1, double y1, double x2, double y2, std::string_view more) {
    return fmt::format("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" {}/>\n", x1, y1, x2, y2, more);
  }
  std::string dot(const Mark& mark, std::string_view color) const {
    return fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"4\" fill=\"{}\"><title>{}</title></circle>\n",
                       x(mark.x), y(mark.y), color, escaped(mark.text));
  }
  // Each beside its dot, where there is more room, and beyond those of dots nearby. A line that falls leaves room above
  // it on the right of a point, and below it on the left.
  std::string labels() const {
    std::string text;
    std::vector<std::pair<bool, double>> taken;  // on the left of its dot; how high
    for (const Mark& mark : plot_.marks) {
      const bool is_left = part(mark.x, plot_.x) > 0.5, is_below = is_left && !plot_.line.empty();
      double at = y(mark.y) + (is_below ? kPlotLine : -7);
      const auto is_taken = [&](const auto& other) {
        return other.first == is_left && std::abs(other.second - at) < kPlotLine;
      };
      while (std::ranges::any_of(taken, is_taken)) at += is_below ? kPlotLine : -kPlotLine;
      taken.emplace_back(is_left, at);
      text += dot(mark, "#d62728") + text_at(x(mark.x) + (is_left ? -8 : 8), at, mark.text,
                                             is_left ? "class=\"n\" text-anchor=\"end\"" : "class=\"n\"");
    }
    return text;
  }

  std::string axis(const Axis& axis, bool is_x) const {
    const double bottom = top_ + kPlotTop + kPlotHeight,
                 step = step_of((axis.most - axis.least) / axis.unit) * axis.unit;
    std::string text = line(kPlotLeft, bottom, is_x ? kPlotLeft + kPlotWidth : kPlotLeft,
                            is_x ? bottom : top_ + kPlotTop, "stroke=\"#333\"");
    for (double at = std::ceil(axis.least / step) * step; at <= axis.most; at += step) {
      const std::string number = fmt::format("{:.4g}", at / axis.unit);
      text += is_x ? text_at(x(at), bottom + 15, number, "class=\"n\" text-anchor=\"middle\"")
                   : text_at(kPlotLeft - 6, y(at) + 4, number, "class=\"n\" text-anchor=\"end\"");
    }
    return text +
           (is_x ? text_at(kPlotLeft + kPlotWidth / 2.0, bottom + 32, axis.title, "class=\"n\" text-anchor=\"middle\"")
                 : text_at(kPlotLeft, top_ + kPlotTop - 8, axis.title, "class=\"n\""));
  }

  std::string legend() const {
    std::string text;
    double left = kPlotLeft + 260;
    for (const Area& area : plot_.areas) {
      text += fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"11\" height=\"11\" fill=\"{}\"/>\n", left, top_ + 4,
                          area.color);
      text += text_at(left + 15, top_ + 14, area.name);
      left += 26 + 6.2 * static_cast<double>(area.name.size());
    }
    return text;
  }

  // Each lies on the one before: along its top, and back along that one's.
  std::string areas() const {
    std::string text;
    std::vector<double> below(plot_.at.size(), 0);
    for (const Area& area : plot_.areas) {
      std::string forth, back;
      for (const std::size_t i : indices(below)) {
        back = fmt::format("{:.1f},{:.1f} ", x(plot_.at[i]), y(below[i])) + back;
        below[i] += area.heights[i];
        forth += fmt::format("{:.1f},{:.1f} ", x(plot_.at[i]), y(below[i]));
      }
      text += fmt::format("<polygon points=\"{}{}\" fill=\"{}\"><title>{}</title></polygon>\n", forth, back, area.color,
                          escaped(area.name));
    }
    return text;
  }

  const Plot& plot_;
  const double top_;
};

}  // namespace

std::string to_svg(const std::vector<Plot>& plots) {
  std::string text;
  int top = kPlotMargin;
  for (const Plot& plot : plots) {
    text += Drawing(plot, top).text();
    top += kPlotTop + kPlotHeight + kPlotBottom + kPlotLine * static_cast<int>(plot.about.size()) + kPlotMargin;
  }
  return document(kPlotLeft + kPlotWidth + kPlotMargin, top, text);
}

}  // namespace sherd::table
