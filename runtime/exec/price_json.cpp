#include "runtime/exec/price_json.h"

#include <algorithm>
#include <array>
#include <tuple>

#include "runtime/exec/strict_json.h"
#include "runtime/tensor/indices.h"

namespace sherd {

namespace {

constexpr const char* kExtrapolated = "extrapolated";

/// A file whose numbers may leave their source to the file's.
class ModelReader {
 public:
  ModelReader(const JsonValue& root, std::string_view file) : file_(file), root_(root) {
    file_.object(root_, "the model");
    source_ = file_.text(file_.required(root_, "source"), "\"source\"");
  }

  DeviceModel device() const {
    file_.check_names(root_, {"device", "cores", "memory_bytes", "flops", "attention", "rows", "read_bytes_per_s",
                              "copy_bytes_per_s", "peak_flops", "launch_s", "links", "software", "source"});
    DeviceModel device{.name = file_.text(file_.required(root_, "device"), "\"device\""), .source = source_};
    device.cores = root_.find("cores") ? file_.count(*root_.find("cores"), "\"cores\"", 1) : 1;
    device.memory_bytes = static_cast<std::int64_t>(number("memory_bytes", true));
    device.call_seconds = number("launch_s", false);
    device.peak_flops = root_.find("peak_flops") ? number("peak_flops", true) : 0;
    device.read = rate(file_.required(root_, "read_bytes_per_s"), "\"read_bytes_per_s\"");
    device.copied =
        root_.find("copy_bytes_per_s") ? rate(*root_.find("copy_bytes_per_s"), "\"copy_bytes_per_s\"") : device.read;
    each_rate("flops", true, [&](const JsonValue& at, const std::string& name, Rate rate) {
      device.products[dtype(at, name)] = std::move(rate);
    });
    each_rate("attention", false, [&](const JsonValue& at, const std::string& name, Rate rate) {
      device.attention[dtype(at, name)] = std::move(rate);
    });
    each_rate("rows", false, [&](const JsonValue& at, const std::string& name, Rate rate) {
      device.rows[kind(at, name)] = std::move(rate);
    });
    read_links(device);
    read_software(device);
    return device;
  }

  FabricModel fabric() const {
    FabricModel model = fabric_of(root_, "fabric");
    model.name = file_.text(file_.required(root_, "fabric"), "\"fabric\"");
    return model;
  }

 private:
  // A plain number, or {"value": number, "source": text}, which may have other names.
  Quoted quoted(const JsonValue& value, std::string_view what, bool is_positive,
                std::vector<std::string> names = {}) const {
    if (value.kind != JsonValue::Kind::object) return {file_.number(value, what, 0, is_positive), source_};
    names.insert(names.end(), {"value", "source"});
    file_.check_names(value, names);
    return {file_.number(file_.required(value, "value"), what, 0, is_positive),
            file_.text(file_.required(value, "source"), "\"source\"")};
  }
  double number(std::string_view name, bool is_positive) const {
    return quoted(file_.required(root_, name), fmt::format("\"{}\"", name), is_positive).value;
  }

  Rate rate(const JsonValue& value, std::string_view what) const {
    const JsonValue* const extrapolated = value.find(kExtrapolated);
    const bool is_extrapolated = extrapolated && file_.boolean(*extrapolated, kExtrapolated);
    if (value.kind != JsonValue::Kind::object || value.find("value")) {
      const Quoted one = quoted(value, what, true, {kExtrapolated});
      return {{{1, one.value}}, one.source, is_extrapolated};
    }
    file_.check_names(value, {"curve", "source", kExtrapolated});
    Rate rate{.source = file_.text(file_.required(value, "source"), "\"source\""), .is_extrapolated = is_extrapolated};
    const JsonValue& curve = file_.array(file_.required(value, "curve"), "\"curve\"");
    if (curve.items.empty()) file_.fail_at(curve, "{} has a curve without points", what);
    for (const JsonValue& item : curve.items) {
      const auto [size, per_second] = pair_of(item, what);
      if (!rate.points.empty()) {
        const Rate::Point& last = rate.points.back();
        if (size <= last.size) file_.fail_at(item, "{} has a point of size {} after {}", what, size, last.size);
        if (size / per_second < last.size / last.per_second)
          file_.fail_at(item, "{} has a curve that falls: size {} takes {} s, and {} takes {} s", what, size,
                        size / per_second, last.size, last.size / last.per_second);
      }
      rate.points.push_back({size, per_second});
    }
    return rate;
  }
  std::pair<double, double> pair_of(const JsonValue& item, std::string_view what) const {
    if (file_.array(item, "a point").items.size() != 2)
      file_.fail_at(item, "{}: a point is [size, per second], not {} numbers", what, item.items.size());
    return {file_.number(item.items[0], "a size", 0, true), file_.number(item.items[1], "a rate", 0, true)};
  }

  template <class Keep>
  void each_rate(std::string_view name, bool is_required, const Keep& keep) const {
    const JsonValue* const rates = is_required ? &file_.required(root_, name) : root_.find(name);
    if (!rates) return;
    for (const auto& [of, value] : file_.object(*rates, fmt::format("\"{}\"", name)).members)
      keep(value, of, rate(value, fmt::format("\"{}\" of {}", of, name)));
  }
  template <class Named>
  auto named(const JsonValue& at, const Named& read) const {
    try {
      return read();
    } catch (const Error& error) { file_.fail_at(at, "{}", error.message()); }
  }
  DType dtype(const JsonValue& at, const std::string& name) const {
    return named(at, [&] { return dtype_from_name(name); });
  }
  WorkKind kind(const JsonValue& at, const std::string& name) const {
    return named(at, [&] { return work_kind_from_name(name); });
  }

  FabricModel fabric_of(const JsonValue& value, std::string_view name) const {
    file_.object(value, "a fabric");
    std::vector<std::string> names{"alpha_s", "beta_bytes_per_s", "call_s", "nics", "curves", "source"};
    if (!name.empty()) names.emplace_back(name);
    file_.check_names(value, names);
    FabricModel model;
    const auto of = [&](std::string_view key, bool is_positive) {
      return quoted(file_.required(value, key), fmt::format("\"{}\"", key), is_positive).value;
    };
    model.link.peer_seconds = of("alpha_s", false);
    model.link.bytes_per_second = of("beta_bytes_per_s", true);
    model.link.call_seconds = value.find("call_s") ? of("call_s", false) : 0;
    if (const JsonValue* const nics = value.find("nics")) model.nics = file_.count(*nics, "\"nics\"", 1);
    const JsonValue* const source = value.find("source");
    model.source = source ? file_.text(*source, "\"source\"") : source_;
    if (const JsonValue* const curves = value.find("curves")) read_curves(*curves, model);
    return model;
  }
  void read_curves(const JsonValue& curves, FabricModel& model) const {
    std::vector<std::string> names;
    for (int m = 0; m < kNumMovements; ++m) names.emplace_back(sherd::name(static_cast<Movement>(m)));
    file_.check_names(file_.object(curves, "\"curves\""), names);
    for (const auto& [name, items] : curves.members) {
      auto& points = model.curves[static_cast<std::size_t>(std::ranges::find(names, name) - names.begin())];
      for (const JsonValue& item : file_.array(items, name).items) points.push_back(point_of(item, points));
      if (points.empty()) file_.fail_at(items, "{} has a curve without points", name);
    }
  }
  FabricModel::Point point_of(const JsonValue& item, const std::vector<FabricModel::Point>& before) const {
    if (file_.array(item, "a point").items.size() != 3)
      file_.fail_at(item, "a point is [ranks, bytes, seconds], not {} numbers", item.items.size());
    const FabricModel::Point p{file_.count(item.items[0], "the number of ranks", 2),
                               file_.number(item.items[1], "bytes", 0, true),
                               file_.number(item.items[2], "seconds", 0, true)};
    if (before.empty()) return p;
    const FabricModel::Point& last = before.back();
    if (std::tie(p.ranks, p.bytes) <= std::tie(last.ranks, last.bytes))
      file_.fail_at(item, "points come by ranks and then by bytes: {} ranks, {} bytes after {} ranks, {} bytes",
                    p.ranks, p.bytes, last.ranks, last.bytes);
    if (p.ranks == last.ranks && p.seconds < last.seconds)
      file_.fail_at(item, "a curve that falls: {} bytes take {} s, and {} bytes {} s", p.bytes, p.seconds, last.bytes,
                    last.seconds);
    return p;
  }

  void read_links(DeviceModel& device) const {
    const JsonValue* const links = root_.find("links");
    if (!links) return;
    for (const auto& [name, value] : file_.object(*links, "\"links\"").members) {
      device.links[name] = fabric_of(value, "");
      device.links[name].name = name;
    }
  }
  void read_software(DeviceModel& device) const {
    const JsonValue* const software = root_.find("software");
    if (!software) return;
    for (const auto& [name, value] : file_.object(*software, "\"software\"").members)
      device.software[name] = quoted(value, fmt::format("\"{}\" of software", name), true);
  }

  JsonFile file_;
  const JsonValue& root_;
  std::string source_;
};

// ---- printing ----

/// JsonMembersText of an object, a line each at the top.
class JsonMembersText {
 public:
  explicit JsonMembersText(std::string_view separator = ", ") : separator_(separator) {}
  void add(std::string_view name, std::string_view value) {
    text_ += fmt::format("{}{}: {}", text_.empty() ? "" : separator_, json_quoted(name), value);
  }
  std::string text() const { return "{" + text_ + "}"; }

 private:
  const std::string_view separator_;
  std::string text_;
};

std::string print_number(double value, const std::string& source, const std::string& file_source) {
  if (source == file_source) return fmt::format("{}", value);
  return fmt::format(R"({{"value": {}, "source": {}}})", value, json_quoted(source));
}

std::string print_rate(const Rate& rate, const std::string& file_source) {
  const std::string flag = rate.is_extrapolated ? fmt::format(", {}: true", json_quoted(kExtrapolated)) : "";
  if (rate.points.size() == 1 && !rate.is_extrapolated)
    return print_number(rate.points[0].per_second, rate.source, file_source);
  if (rate.points.size() == 1)
    return fmt::format(R"({{"value": {}, "source": {}{}}})", rate.points[0].per_second, json_quoted(rate.source), flag);
  std::string points;
  for (const Rate::Point& p : rate.points)
    points += fmt::format("{}[{}, {}]", points.empty() ? "" : ", ", p.size, p.per_second);
  return fmt::format(R"({{"curve": [{}], "source": {}{}}})", points, json_quoted(rate.source), flag);
}

template <class Rates>
std::string print_rates(const Rates& rates, const std::string& file_source) {
  JsonMembersText members;
  for (const auto& [of, rate] : rates) members.add(name(of), print_rate(rate, file_source));
  return members.text();
}

void print_into(JsonMembersText& out, const FabricModel& model) {
  out.add("alpha_s", fmt::format("{}", model.link.peer_seconds));
  out.add("beta_bytes_per_s", fmt::format("{}", model.link.bytes_per_second));
  out.add("call_s", fmt::format("{}", model.link.call_seconds));
  if (model.nics > 0) out.add("nics", std::to_string(model.nics));
  JsonMembersText curves;
  bool has_curves = false;
  for (int m = 0; m < kNumMovements; ++m) {
    std::string points;
    for (const FabricModel::Point& p : model.curves[static_cast<std::size_t>(m)])
      points += fmt::format("{}[{}, {}, {}]", points.empty() ? "" : ", ", p.ranks, p.bytes, p.seconds);
    if (points.empty()) continue;
    curves.add(name(static_cast<Movement>(m)), "[" + points + "]");
    has_curves = true;
  }
  if (has_curves) out.add("curves", curves.text());
  out.add("source", json_quoted(model.source));
}

}  // namespace

DeviceModel parse_device_model(std::string_view text, std::string_view file) {
  return read_device_model(parse_strict_json(text, file), file);
}

DeviceModel read_device_model(const JsonValue& value, std::string_view file) {
  return ModelReader(value, file).device();
}

FabricModel parse_fabric_model(std::string_view text, std::string_view file) {
  return ModelReader(parse_strict_json(text, file), file).fabric();
}

std::string print(const DeviceModel& model) {
  JsonMembersText out(",\n ");
  out.add("device", json_quoted(model.name));
  out.add("cores", std::to_string(model.cores));
  out.add("memory_bytes", std::to_string(model.memory_bytes));
  out.add("launch_s", fmt::format("{}", model.call_seconds));
  if (model.peak_flops > 0) out.add("peak_flops", fmt::format("{}", model.peak_flops));
  out.add("flops", print_rates(model.products, model.source));
  if (!model.attention.empty()) out.add("attention", print_rates(model.attention, model.source));
  if (!model.rows.empty()) out.add("rows", print_rates(model.rows, model.source));
  out.add("read_bytes_per_s", print_rate(model.read, model.source));
  out.add("copy_bytes_per_s", print_rate(model.copied, model.source));
  JsonMembersText links, software;
  for (const auto& [name, link] : model.links) {
    JsonMembersText link_members;
    print_into(link_members, link);
    links.add(name, link_members.text());
  }
  for (const auto& [name, factor] : model.software)
    software.add(name, print_number(factor.value, factor.source, model.source));
  if (!model.links.empty()) out.add("links", links.text());
  if (!model.software.empty()) out.add("software", software.text());
  out.add("source", json_quoted(model.source));
  return out.text() + "\n";
}

std::string print(const FabricModel& model) {
  JsonMembersText out;
  out.add("fabric", json_quoted(model.name));
  print_into(out, model);
  return out.text() + "\n";
}

}  // namespace sherd
