#include "tests/support/trace_check.h"

#include <algorithm>
#include <stdexcept>

namespace sherd::testing {

namespace {

using nlohmann::json;
using Key = std::pair<int, int>;  // process, thread

void require(bool holds, const std::string& what, const json& event) {
  if (!holds) throw std::runtime_error(what + ": " + event.dump());
}

class Reader {
 public:
  explicit Reader(const std::string& text) : file_(json::parse(text)) {}

  ReadTrace read() {
    result_.notes = file_.at("otherData");
    std::vector<json> events = file_.at("traceEvents");
    for (const json& e : events) {
      require(!e.at("ph").get<std::string>().empty() && e.at("ts").is_number(), "an event without phase or time", e);
      if (e["ph"] == "M") read_name(e);
    }
    // Viewers sort by time and keep the order of the file among equals.
    std::stable_sort(events.begin(), events.end(), [](const json& a, const json& b) { return a["ts"] < b["ts"]; });
    for (const json& e : events)
      if (e["ph"] != "M") read_event(e);
    for (const auto& [key, open] : open_)
      if (!open.empty()) throw std::runtime_error("a slice never ends: " + slice(open.back()).name);
    if (!arrows_.empty()) throw std::runtime_error("an arrow never arrives");
    return std::move(result_);
  }

 private:
  TraceSlice& slice(int index) { return result_.slices[static_cast<std::size_t>(index)]; }
  static Key key_of(const json& e) { return {e.at("pid").get<int>(), e.at("tid").get<int>()}; }

  void read_name(const json& e) {
    const std::string what = e.at("name").get<std::string>();
    if (what == "process_name") processes_[e.at("pid").get<int>()] = e.at("args").at("name").get<std::string>();
    if (what != "thread_name") return;
    const std::string track = e.at("args").at("name").get<std::string>();
    require(tracks_.emplace(key_of(e), track).second, "two names for one track", e);
    for (const auto& [key, name] : tracks_)
      require(key == key_of(e) || key.second != key_of(e).second, "one thread id in two processes", e);
    auto& all = result_.tracks[processes_.at(e.at("pid").get<int>())];
    require(std::find(all.begin(), all.end(), track) == all.end(), "two tracks of one name", e);
    all.push_back(track);
  }

  void read_event(const json& e) {
    const std::string ph = e["ph"].get<std::string>();
    const double time = e["ts"].get<double>();
    require(time > 0, "an event at no time", e);
    auto& open = open_[key_of(e)];
    if (ph == "E") {
      require(!open.empty(), "an end without a begin", e);
      slice(open.back()).end = time;
      open.pop_back();
      return;
    }
    require(!e.at("name").get<std::string>().empty(), "an event without a name", e);
    if (ph == "B") {
      require(tracks_.contains(key_of(e)), "a slice on a track without a name", e);
      TraceSlice s{processes_.at(e["pid"].get<int>()), tracks_.at(key_of(e)), e["name"].get<std::string>(),
                   e.at("cat").get<std::string>(), e.value("args", json::object())};
      s.start = time;
      s.parent = open.empty() ? -1 : open.back();
      open.push_back(static_cast<int>(result_.slices.size()));
      result_.slices.push_back(std::move(s));
    } else if (ph == "s") {
      require(!open.empty(), "an arrow that leaves from nowhere", e);
      require(arrows_.emplace(e.at("id").get<std::int64_t>(), open.back()).second, "an arrow that leaves twice", e);
    } else if (ph == "f") {
      require(!open.empty() && e.value("bp", "") == "e", "an arrow that leads nowhere", e);
      const auto from = arrows_.find(e.at("id").get<std::int64_t>());
      require(from != arrows_.end(), "an arrow that arrives before it leaves", e);
      result_.arrows.emplace_back(from->second, open.back());
      arrows_.erase(from);
    } else if (ph == "C") {
      result_.counts.push_back({processes_.at(e["pid"].get<int>()), e["name"].get<std::string>(), time, e.at("args")});
    } else {
      require(false, "an event of an unknown kind", e);
    }
  }

  const json file_;
  ReadTrace result_;
  std::map<int, std::string> processes_;
  std::map<Key, std::string> tracks_;
  std::map<Key, std::vector<int>> open_;
  std::map<std::int64_t, int> arrows_;  // in flight: id, slice they left
};

}  // namespace

std::string ReadTrace::path_of(const TraceSlice& slice) const {
  const std::string outer = slice.parent < 0 ? "" : path_of(slices[static_cast<std::size_t>(slice.parent)]) + " > ";
  return outer + slice.name;
}

std::vector<const TraceSlice*> ReadTrace::named(std::string_view name) const {
  std::vector<const TraceSlice*> found;
  for (const TraceSlice& s : slices)
    if (s.name == name) found.push_back(&s);
  return found;
}

ReadTrace read_trace(const std::string& text) { return Reader(text).read(); }

}  // namespace sherd::testing
