// A patience diff: what begins and ends alike is set aside; lines that are once in each of the rest, as many of them as
// keep their order, divide it into parts that are compared likewise. A part without such lines is replaced.
#include "compile/ir/text/line_diff.h"

#include <algorithm>
#include <unordered_map>
#include <vector>

#include <fmt/format.h>

#include "runtime/tensor/indices.h"

namespace sherd::ir {

namespace {

constexpr std::size_t kAround = 3;

std::vector<std::string_view> lines_of(std::string_view text) {
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size() - 1);
    lines.push_back(text.substr(0, text[end] == '\n' ? end : end + 1));
    text.remove_prefix(end + 1);
  }
  return lines;
}

/// Lines [first, last) of each text.
struct Part {
  std::size_t a, a_end, b, b_end;
};

/// A line of each text, and the anchor before it in the longest list that it ends; -1: none.
struct Anchor {
  std::size_t a, b;
  int before;
};

class LineDiff {
 public:
  LineDiff(std::string_view before, std::string_view after) : a_(lines_of(before)), b_(lines_of(after)) {
    compare({0, a_.size(), 0, b_.size()});
  }

  // Changes with no more lines between them than stand around both are one hunk.
  std::string text() const {
    std::string text;
    for (std::size_t i = 0; i < changes_.size();) {
      std::size_t end = i + 1;
      while (end < changes_.size() && changes_[end].a - changes_[end - 1].a_end <= 2 * kAround) ++end;
      text += hunk(i, end);
      i = end;
    }
    return text;
  }

 private:
  std::string hunk(std::size_t first, std::size_t end) const {
    const std::size_t before = std::min(kAround, changes_[first].a);
    const std::size_t after = std::min(kAround, a_.size() - changes_[end - 1].a_end);
    const Part all{changes_[first].a - before, changes_[end - 1].a_end + after, changes_[first].b - before,
                   changes_[end - 1].b_end + after};
    std::string text = fmt::format("@@ -{} +{} @@\n", place(all.a, all.a_end), place(all.b, all.b_end));
    std::size_t a = all.a;
    const auto add = [&text](char sign, std::string_view line) { text += fmt::format("{}{}\n", sign, line); };
    for (const std::size_t i : Numbers<std::size_t>(first, end)) {
      for (; a < changes_[i].a; ++a) add(' ', a_[a]);
      for (; a < changes_[i].a_end; ++a) add('-', a_[a]);
      for (const std::size_t b : Numbers<std::size_t>(changes_[i].b, changes_[i].b_end)) add('+', b_[b]);
    }
    for (; a < all.a_end; ++a) add(' ', a_[a]);
    return text;
  }

  // An empty one stands at the line before.
  static std::string place(std::size_t first, std::size_t end) {
    return fmt::format("{},{}", first + (end > first ? 1 : 0), end - first);
  }

  void compare(Part part) {
    while (part.a < part.a_end && part.b < part.b_end && a_[part.a] == b_[part.b]) ++part.a, ++part.b;
    while (part.a < part.a_end && part.b < part.b_end && a_[part.a_end - 1] == b_[part.b_end - 1])
      --part.a_end, --part.b_end;
    const std::vector<Anchor> common = anchors(part);
    for (const Anchor& anchor : common) {
      compare({part.a, anchor.a, part.b, anchor.b});
      part.a = anchor.a + 1;
      part.b = anchor.b + 1;
    }
    if (!common.empty()) compare(part);
    else if (part.a < part.a_end || part.b < part.b_end) changes_.push_back(part);
  }

  // The longest list of lines that are once in each part and come in the same order: each one follows that with the
  // least place in `b` of all that end a list one shorter.
  std::vector<Anchor> anchors(const Part& part) const {
    struct Seen {
      int in_a = 0, in_b = 0;
      std::size_t b = 0;
    };
    std::unordered_map<std::string_view, Seen> seen;
    for (const std::size_t a : Numbers<std::size_t>(part.a, part.a_end)) ++seen[a_[a]].in_a;
    for (std::size_t b = part.b; b < part.b_end; ++b) {
      Seen& line = seen[b_[b]];
      ++line.in_b;
      line.b = b;
    }
    std::vector<Anchor> found;
    std::vector<int> last;  // by length of a list less 1: which of `found` ends it
    for (const std::size_t a : Numbers<std::size_t>(part.a, part.a_end)) {
      const Seen& line = seen[a_[a]];
      if (line.in_a != 1 || line.in_b != 1) continue;
      const auto place = std::ranges::lower_bound(last, line.b, {}, [&](int i) { return found[index(i)].b; });
      found.push_back({a, line.b, place == last.begin() ? -1 : *(place - 1)});
      const auto own = static_cast<int>(found.size()) - 1;
      if (place == last.end()) last.push_back(own);
      else *place = own;
    }
    std::vector<Anchor> longest;
    for (int i = last.empty() ? -1 : last.back(); i >= 0; i = found[index(i)].before)
      longest.push_back(found[index(i)]);
    std::ranges::reverse(longest);
    return longest;
  }
  static std::size_t index(int i) { return static_cast<std::size_t>(i); }

  const std::vector<std::string_view> a_, b_;
  std::vector<Part> changes_;
};

}  // namespace

std::string line_diff(std::string_view before, std::string_view after) { return LineDiff(before, after).text(); }

}  // namespace sherd::ir
