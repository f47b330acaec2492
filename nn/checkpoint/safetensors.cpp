#include "nn/checkpoint/safetensors.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <tuple>

#include <nlohmann/json.hpp>

#include "nn/checkpoint/atomic_file.h"
#include "nn/checkpoint/bounded_json.h"
#include "runtime/tensor/error.h"

// Files come from anywhere, so the reader trusts nothing: every number of the header is checked against the size of
// the file before a byte is touched.
namespace sherd {

namespace {

using nlohmann::json;

constexpr std::size_t kLengthBytes = 8;
constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;  // the limit of the format's own library
constexpr std::array<std::string_view, kNumDTypes> kDTypeNames = {"F64", "F32", "BF16", "F16",
                                                                  "I64", "I32", "U8",   "BOOL"};

std::string_view format_name(DType dtype) { return kDTypeNames[static_cast<std::size_t>(dtype)]; }

/// The whole file, mapped read-only; unmapped when the last pointer goes.
std::shared_ptr<const std::byte> map_file(const std::string& path, std::size_t& size) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  check(descriptor >= 0, "cannot open \"{}\": {}", path, std::strerror(errno));
  struct stat status{};
  const bool regular = ::fstat(descriptor, &status) == 0 && S_ISREG(status.st_mode);
  size = regular ? static_cast<std::size_t>(status.st_size) : 0;
  void* data = size > 0 ? ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, descriptor, 0) : nullptr;
  const int error = errno;
  ::close(descriptor);
  check(regular, "\"{}\" is not a regular file", path);
  check(data != MAP_FAILED, "cannot map \"{}\" ({} bytes): {}", path, size, std::strerror(error));
  return {static_cast<const std::byte*>(data), [size](const std::byte* p) {
            if (p != nullptr) ::munmap(const_cast<std::byte*>(p), size);
          }};
}

json parse_header(const std::string& path, std::string_view text) {
  try {
    json header = parse_bounded_json(text);
    check(header.is_object(), "it is not a JSON object");
    return header;
  } catch (const Error& error) { fail("\"{}\": its header cannot be read: {}", path, error.message()); }
}

/// A JSON integer in 0..2^63-1, or nothing.
bool read_unsigned(const json& value, std::int64_t& out) {
  if (!value.is_number_unsigned() || value.get<std::uint64_t>() > static_cast<std::uint64_t>(INT64_MAX)) return false;
  out = value.get<std::int64_t>();
  return true;
}

DType read_dtype(const std::string& where, const json& entry) {
  const auto found = entry.find("dtype");
  check(found != entry.end() && found->is_string(), "{}: no dtype", where);
  const auto& text = found->get_ref<const std::string&>();
  const auto known = std::find(kDTypeNames.begin(), kDTypeNames.end(), text);
  check(known != kDTypeNames.end(), "{}: unknown dtype \"{}\"; the dtypes are {}", where, text,
        fmt::join(kDTypeNames, " "));
  return static_cast<DType>(known - kDTypeNames.begin());
}

Shape read_shape(const std::string& where, const json& entry) {
  const auto found = entry.find("shape");
  check(found != entry.end() && found->is_array(), "{}: no shape", where);
  check(found->size() <= kMaxDims, "{}: {} dims; at most {} are supported", where, found->size(), kMaxDims);
  Shape shape;
  for (const json& dim : *found) {
    std::int64_t value = 0;
    check(read_unsigned(dim, value), "{}: the shape holds {}, which is no size", where, dim.dump());
    shape.push_back(value);
  }
  return shape;
}

/// One entry of the header as a tensor over `data`, the part of the file after the header.
TensorBytes read_entry(const std::string& path, const std::string& name, const json& entry,
                       std::span<const std::byte> data) {
  const std::string where = fmt::format("\"{}\": tensor \"{}\"", path, name);
  check(entry.is_object(), "{}: its header entry is not an object", where);
  TensorBytes tensor{name, read_dtype(where, entry), read_shape(where, entry), {}};
  const auto offsets = entry.find("data_offsets");
  std::int64_t begin = 0, end = 0;
  check(offsets != entry.end() && offsets->is_array() && offsets->size() == 2 && read_unsigned((*offsets)[0], begin) &&
            read_unsigned((*offsets)[1], end) && begin <= end,
        "{}: data_offsets are not two ascending numbers", where);
  check(static_cast<std::uint64_t>(end) <= data.size(),
        "{}: its bytes end at {}, but the file holds {} bytes of data; the file is truncated or its header is wrong",
        where, end, data.size());
  std::int64_t needed = 0;
  try {
    needed = byte_count(tensor.dtype, tensor.shape);
  } catch (const Error& error) { fail("{}: {}", where, error.message()); }
  check(end - begin == needed, "{}: {}{} needs {} bytes, data_offsets give {}", where, format_name(tensor.dtype),
        to_string(tensor.shape), needed, end - begin);
  tensor.bytes = data.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin));
  return tensor;
}

/// Every byte of the data belongs to exactly one tensor. `tensors` are sorted by where they start.
void check_layout(const std::string& path, std::span<const TensorBytes> tensors, std::span<const std::byte> data) {
  const std::byte* at = data.data();
  for (const TensorBytes& tensor : tensors) {
    check(tensor.bytes.data() >= at, "\"{}\": tensor \"{}\" overlaps the one before it by {} bytes", path, tensor.name,
          at - tensor.bytes.data());
    check(tensor.bytes.data() == at, "\"{}\": {} bytes before tensor \"{}\" belong to no tensor", path,
          tensor.bytes.data() - at, tensor.name);
    at += tensor.bytes.size();
  }
  const auto rest = data.data() + data.size() - at;
  check(rest == 0, "\"{}\": {} bytes at its end belong to no tensor", path, rest);
}

std::vector<const TensorBytes*> in_file_order(const std::string& path, std::span<const TensorBytes> tensors) {
  std::vector<const TensorBytes*> order;
  for (const TensorBytes& tensor : tensors) {
    check(tensor.name != "__metadata__", "\"{}\": a tensor may not be named __metadata__", path);
    const std::int64_t needed = byte_count(tensor.dtype, tensor.shape);
    check(static_cast<std::uint64_t>(needed) == tensor.bytes.size(),
          "\"{}\": tensor \"{}\" has {} bytes, {}{} needs {}", path, tensor.name, tensor.bytes.size(),
          name(tensor.dtype), to_string(tensor.shape), needed);
    order.push_back(&tensor);
  }
  std::sort(order.begin(), order.end(), [](const TensorBytes* a, const TensorBytes* b) {
    const auto wide_first = [](const TensorBytes& t) { return -byte_size(t.dtype); };
    return std::tuple(wide_first(*a), std::string_view(a->name)) <
           std::tuple(wide_first(*b), std::string_view(b->name));
  });
  return order;
}

std::string make_header(const std::string& path, std::span<const TensorBytes* const> order,
                        const std::map<std::string, std::string>& metadata) {
  json header = json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  std::int64_t offset = 0;
  for (const TensorBytes* tensor : order) {
    const auto bytes = static_cast<std::int64_t>(tensor->bytes.size());
    check(!header.contains(tensor->name), "\"{}\": two tensors are named \"{}\"", path, tensor->name);
    header[tensor->name] = {{"dtype", format_name(tensor->dtype)},
                            {"shape", std::vector<std::int64_t>(tensor->shape.begin(), tensor->shape.end())},
                            {"data_offsets", {offset, offset + bytes}}};
    offset += bytes;
  }
  std::string text;
  try {
    text = header.dump();
  } catch (const json::exception& error) { fail("\"{}\": a name is not UTF-8: {}", path, error.what()); }
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

SafetensorsFile SafetensorsFile::open(const std::string& path) {
  SafetensorsFile file;
  file.path_ = path;
  std::size_t size = 0;
  file.mapping_ = map_file(path, size);
  const std::span<const std::byte> all(file.mapping_.get(), size);
  check(size >= kLengthBytes, "\"{}\" has {} bytes; a safetensors file starts with an 8-byte header length", path,
        size);
  std::uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, all.data(), kLengthBytes);
  check(header_bytes <= kMaxHeaderBytes, "\"{}\": a header of {} bytes is announced, the format allows {}", path,
        header_bytes, kMaxHeaderBytes);
  check(header_bytes <= size - kLengthBytes,
        "\"{}\": a header of {} bytes is announced, but only {} bytes follow; the file is truncated", path,
        header_bytes, size - kLengthBytes);
  const auto text = all.subspan(kLengthBytes, static_cast<std::size_t>(header_bytes));
  const auto data = all.subspan(kLengthBytes + static_cast<std::size_t>(header_bytes));

  const json header = parse_header(path, {reinterpret_cast<const char*>(text.data()), text.size()});
  for (const auto& [name, entry] : header.items()) {
    if (name != "__metadata__") {
      file.tensors_.push_back(read_entry(path, name, entry, data));
      continue;
    }
    check(entry.is_object(), "\"{}\": __metadata__ is not an object", path);
    for (const auto& [key, value] : entry.items()) {
      check(value.is_string(), "\"{}\": __metadata__ entry \"{}\" is not a string", path, key);
      file.metadata_[key] = value.get<std::string>();
    }
  }
  std::stable_sort(file.tensors_.begin(), file.tensors_.end(), [](const TensorBytes& a, const TensorBytes& b) {
    return std::tuple(a.bytes.data(), a.bytes.size()) < std::tuple(b.bytes.data(), b.bytes.size());
  });
  check_layout(path, file.tensors_, data);
  for (std::size_t i = 0; i < file.tensors_.size(); ++i) file.index_[file.tensors_[i].name] = i;
  return file;
}

const TensorBytes* SafetensorsFile::find(std::string_view name) const {
  const auto found = index_.find(std::string(name));
  return found == index_.end() ? nullptr : &tensors_[found->second];
}

const TensorBytes& SafetensorsFile::at(std::string_view name) const {
  const TensorBytes* tensor = find(name);
  check(tensor != nullptr, "\"{}\" holds no tensor \"{}\"", path_, name);
  return *tensor;
}

void write_safetensors(const std::string& path, std::span<const TensorBytes> tensors,
                       const std::map<std::string, std::string>& metadata) {
  const auto order = in_file_order(path, tensors);
  const std::string header = make_header(path, order, metadata);
  const std::uint64_t header_bytes = header.size();
  std::size_t total = kLengthBytes + header.size();
  for (const TensorBytes* tensor : order) total += tensor->bytes.size();

  AtomicFile file(path, static_cast<std::int64_t>(total));
  file.write(std::as_bytes(std::span(&header_bytes, 1)));
  file.write(std::as_bytes(std::span(header)));
  for (const TensorBytes* tensor : order) file.write(tensor->bytes);
  file.commit();
}

}  // namespace sherd
