#include "nn/checkpoint/format/safetensors.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <set>
#include <tuple>

#include "nn/checkpoint/format/bounded_json.h"
#include "runtime/tensor/error.h"
#include "runtime/tensor/indices.h"

// Files come from anywhere, so the reader trusts nothing: every number of the header is checked against the size of
// the file before a byte is touched. The header is read as a stream, entry by entry.
namespace sherd::ckpt {

namespace {

using nlohmann::json;

constexpr std::size_t kLengthBytes = 8;
constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;  // the limit of the format's own library
constexpr std::size_t kMaxMetadata = 100'000;
constexpr std::array<std::string_view, kNumDTypes> kDTypeNames = {"F64", "F32", "BF16", "F16",
                                                                  "I64", "I32", "U8",   "BOOL"};

std::string_view format_name(DType dtype) { return kDTypeNames[static_cast<std::size_t>(dtype)]; }

/// A JSON integer in 0..2^63-1, or nothing.
bool read_unsigned(const json& value, std::int64_t& out) {
  if (!value.is_number_unsigned() || value.get<std::uint64_t>() > static_cast<std::uint64_t>(INT64_MAX)) return false;
  out = value.get<std::int64_t>();
  return true;
}

DType read_dtype(const json& entry) {
  const auto found = entry.find("dtype");
  check(found != entry.end() && found->is_string(), "no dtype");
  const auto& text = found->get_ref<const std::string&>();
  const auto known = std::find(kDTypeNames.begin(), kDTypeNames.end(), text);
  check(known != kDTypeNames.end(), "unknown dtype \"{}\"; the dtypes are {}", text, fmt::join(kDTypeNames, " "));
  return static_cast<DType>(known - kDTypeNames.begin());
}

Shape read_shape(const json& entry) {
  const auto found = entry.find("shape");
  check(found != entry.end() && found->is_array(), "no shape");
  check(found->size() <= kMaxDims, "{} dims; at most {} are supported", found->size(), kMaxDims);
  Shape shape;
  for (const json& dim : *found) {
    std::int64_t value = 0;
    if (!read_unsigned(dim, value)) fail("the shape holds {}, which is no size", shown(dim));
    shape.push_back(value);
  }
  return shape;
}

/// "holds a, b, c and 5 more", of what a file without the wanted tensor has.
std::string some_names(const std::deque<TensorEntry>& tensors) {
  constexpr std::size_t kMost = 3;
  std::vector<std::string_view> names;
  for (const std::size_t i : up_to(std::min(kMost, tensors.size()))) names.emplace_back(tensors[i].name);
  return fmt::format("{}{}", names.empty() ? "none at all" : fmt::format("{}", fmt::join(names, ", ")),
                     tensors.size() > kMost ? fmt::format(" and {} more", tensors.size() - kMost) : "");
}

/// One entry of the header; the tensors' bytes start at `data` and there are `data_bytes` of them.
TensorEntry read_entry(const std::string& name, const json& entry, std::int64_t data, std::int64_t data_bytes) {
  check(entry.is_object(), "its header entry is not an object");
  TensorEntry tensor{{name, read_dtype(entry), read_shape(entry)}};
  const auto offsets = entry.find("data_offsets");
  std::int64_t begin = 0, end = 0;
  check(offsets != entry.end() && offsets->is_array() && offsets->size() == 2 && read_unsigned((*offsets)[0], begin) &&
            read_unsigned((*offsets)[1], end) && begin <= end,
        "data_offsets are not two ascending numbers");
  check(end <= data_bytes,
        "its bytes end at {}, but the file holds {} bytes of data; the file is truncated or its header is wrong", end,
        data_bytes);
  const std::int64_t needed = byte_count(tensor.dtype, tensor.shape);
  check(end - begin == needed, "{}{} needs {} bytes, data_offsets give {}", format_name(tensor.dtype), tensor.shape,
        needed, end - begin);
  tensor.offset = data + begin;
  tensor.bytes = needed;
  return tensor;
}

/// Every byte from `at` to the file's end belongs to exactly one tensor. `tensors` are sorted by where they start.
void check_layout(const std::string& path, const std::deque<TensorEntry>& tensors, std::int64_t at,
                  std::int64_t file_bytes) {
  for (const TensorEntry& tensor : tensors) {
    check(tensor.offset >= at, "\"{}\": tensor \"{}\" overlaps the one before it by {} bytes", path, tensor.name,
          at - tensor.offset);
    check(tensor.offset == at, "\"{}\": {} bytes before tensor \"{}\" belong to no tensor", path, tensor.offset - at,
          tensor.name);
    at += tensor.bytes;
  }
  check(at == file_bytes, "\"{}\": {} bytes at its end belong to no tensor", path, file_bytes - at);
}

std::vector<TensorBytes> in_file_order(const std::string& path, std::span<const TensorBytes> tensors) {
  std::vector<TensorBytes> order(tensors.begin(), tensors.end());
  for (const TensorBytes& tensor : order) {
    const std::int64_t needed = byte_count(tensor.dtype, tensor.shape);
    check(static_cast<std::uint64_t>(needed) == tensor.bytes.size(),
          "\"{}\": tensor \"{}\" has {} bytes, {}{} needs {}", path, tensor.name, tensor.bytes.size(),
          name(tensor.dtype), to_string(tensor.shape), needed);
  }
  std::sort(order.begin(), order.end(), [](const TensorBytes& a, const TensorBytes& b) {
    return std::tuple(-byte_size(a.dtype), std::string_view(a.name)) <
           std::tuple(-byte_size(b.dtype), std::string_view(b.name));
  });
  return order;
}

/// In the order and the spelling of the format's own library, so that a file written back is the same file.
std::string make_header(const std::string& path, std::span<const TensorInfo> tensors,
                        const std::map<std::string, std::string>& metadata) {
  std::string text = "{";
  std::set<std::string_view> names;
  std::int64_t offset = 0;
  try {
    if (!metadata.empty()) text += "\"__metadata__\":" + json(metadata).dump();
    for (const TensorInfo& tensor : tensors) {
      check(tensor.name != "__metadata__", "\"{}\": a tensor may not be named __metadata__", path);
      check(names.insert(tensor.name).second, "\"{}\": two tensors are named \"{}\"", path, tensor.name);
      const std::int64_t end = offset + byte_count(tensor.dtype, tensor.shape);
      text +=
          fmt::format(R"({}{}:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})", text.size() > 1 ? "," : "",
                      json(tensor.name).dump(), format_name(tensor.dtype), fmt::join(tensor.shape, ","), offset, end);
      offset = end;
    }
  } catch (const json::exception& error) { fail("\"{}\": a name is not UTF-8: {}", path, error.what()); }
  text += "}";
  text.append((kLengthBytes - text.size() % kLengthBytes) % kLengthBytes, ' ');  // data starts 8-byte aligned
  check(text.size() <= kMaxHeaderBytes, "\"{}\": the header has {} bytes, the format allows {}", path, text.size(),
        kMaxHeaderBytes);
  return text;
}

}  // namespace

std::int64_t byte_count(DType dtype, const Shape& shape) {
  std::int64_t bytes = byte_size(dtype);
  bool fits = true, empty = false;
  for (const std::int64_t dim : shape) {
    check(dim >= 0, "the shape {} has a negative dim", to_string(shape));
    empty = empty || dim == 0;
    fits = fits && !__builtin_mul_overflow(bytes, std::max<std::int64_t>(dim, 1), &bytes);
  }
  check(fits, "a tensor of shape {} is larger than any memory", to_string(shape));
  return empty ? 0 : bytes;
}

/// The tensors' bytes start at `data`.
void SafetensorsFile::Contents::read_header(std::int64_t data) {
  FileText text(file, kLengthBytes, data);
  JsonMembers header, notes{.name = "__metadata__", .required = false};
  header.each = [&](const std::string& name, const json& entry) {
    try {
      tensors.push_back(read_entry(name, entry, data, file.bytes() - data));
    } catch (const Error& error) { fail("tensor \"{}\": {}", name, error.message()); }
  };
  notes.each = [&](const std::string& key, const json& value) {
    check(value.is_string(), "__metadata__ entry \"{}\" is not a string", key);
    check(metadata.size() < kMaxMetadata, "__metadata__ has more than {} entries", kMaxMetadata);
    check(metadata.emplace(key, value.get_ref<const std::string&>()).second, "the name \"{}\" stands twice", key);
  };
  header.large = {notes};
  try {
    read_json(text, header);
  } catch (const Error& error) { fail("\"{}\": in its header: {}", file.path(), error.message()); }
  std::sort(tensors.begin(), tensors.end(), [](const TensorEntry& a, const TensorEntry& b) {
    return std::tie(a.offset, a.bytes, a.name) < std::tie(b.offset, b.bytes, b.name);
  });
}

void SafetensorsFile::Contents::index_names() {
  by_name.resize(tensors.size());
  std::iota(by_name.begin(), by_name.end(), 0u);
  const auto name = [&](std::uint32_t i) -> const std::string& { return tensors[i].name; };
  std::ranges::sort(by_name, {}, name);
  const auto twice = std::ranges::adjacent_find(by_name, {}, name);
  if (twice != by_name.end()) fail("\"{}\": in its header: the name \"{}\" stands twice", file.path(), name(*twice));
}

SafetensorsFile SafetensorsFile::open(const std::string& path) {
  const auto contents = std::make_shared<Contents>(path);
  const std::int64_t size = contents->file.bytes();
  check(size >= static_cast<std::int64_t>(kLengthBytes),
        "\"{}\" is not a safetensors file: it has {} bytes, and such a file begins with 8 bytes of header length", path,
        size);
  std::uint64_t header_bytes = 0;
  contents->file.read(0, std::as_writable_bytes(std::span(&header_bytes, 1)));
  check(header_bytes <= kMaxHeaderBytes,
        "\"{}\" is not a safetensors file: its first 8 bytes would be a header length of {}, and the format allows {}",
        path, header_bytes, kMaxHeaderBytes);
  const std::int64_t data = static_cast<std::int64_t>(kLengthBytes + header_bytes);
  check(data <= size, "\"{}\": a header of {} bytes is announced, but only {} bytes follow; the file is truncated",
        path, header_bytes, size - static_cast<std::int64_t>(kLengthBytes));
  contents->read_header(data);
  contents->index_names();
  check_layout(path, contents->tensors, data, size);
  return SafetensorsFile(contents);
}

void SafetensorsFile::read(const TensorEntry& tensor, std::int64_t begin, std::span<std::byte> out) const {
  const auto bytes = static_cast<std::int64_t>(out.size());
  check(begin >= 0 && bytes <= tensor.bytes - begin, "\"{}\": bytes {} to {} of tensor \"{}\" asked for, which has {}",
        path(), begin, begin + bytes, tensor.name, tensor.bytes);
  try {
    contents_->file.read(tensor.offset + begin, out);
  } catch (const Error& error) { fail("{}, within tensor \"{}\"", error.message(), tensor.name); }
}

const TensorEntry* SafetensorsFile::find(std::string_view name) const {
  const auto& [file, tensors, by_name, metadata] = *contents_;
  const auto found =
      std::ranges::lower_bound(by_name, name, {}, [&](std::uint32_t i) { return std::string_view(tensors[i].name); });
  return found == by_name.end() || tensors[*found].name != name ? nullptr : &tensors[*found];
}

const TensorEntry& SafetensorsFile::at(std::string_view name) const {
  const TensorEntry* tensor = find(name);
  if (tensor == nullptr) fail("\"{}\" holds no tensor \"{}\", but {}", path(), name, some_names(tensors()));
  return *tensor;
}

SafetensorsWriter::SafetensorsWriter(const std::string& path, std::span<const TensorInfo> tensors,
                                     const std::map<std::string, std::string>& metadata, BlockHasher* hasher)
    : path_(path) {
  const std::string header = make_header(path, tensors, metadata);
  const std::uint64_t header_bytes = header.size();
  for (const TensorInfo& tensor : tensors) left_bytes_ += byte_count(tensor.dtype, tensor.shape);
  file_.emplace(path, static_cast<std::int64_t>(kLengthBytes + header_bytes) + left_bytes_, hasher);
  file_->write(std::as_bytes(std::span(&header_bytes, 1)));
  file_->write(std::as_bytes(std::span(header)));
}

void SafetensorsWriter::write(std::span<const std::byte> bytes) {
  check(static_cast<std::int64_t>(bytes.size()) <= left_bytes_, "\"{}\": {} bytes are written where {} are left", path_,
        bytes.size(), left_bytes_);
  file_->write(bytes);
  left_bytes_ -= static_cast<std::int64_t>(bytes.size());
}

void SafetensorsWriter::commit() {
  check(left_bytes_ == 0, "\"{}\": {} bytes of its tensors were not written", path_, left_bytes_);
  file_->commit();
}

void write_safetensors(const std::string& path, std::span<const TensorBytes> tensors,
                       const std::map<std::string, std::string>& metadata) {
  const auto order = in_file_order(path, tensors);
  SafetensorsWriter writer(path, std::vector<TensorInfo>(order.begin(), order.end()), metadata);
  for (const TensorBytes& tensor : order) writer.write(tensor.bytes);
  writer.commit();
}

}  // namespace sherd::ckpt
