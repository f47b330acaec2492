// How the plain types of attributes are written and read.
#include <charconv>
#include <cmath>

#include "runtime/op/attrs/attr_text.h"
#include "runtime/tensor/indices.h"
#include "runtime/tensor/quantity.h"

namespace sherd {

namespace {

template <class T, class... Types>
constexpr bool is_one_of = (std::is_same_v<T, Types> || ...);

template <class T>
void read_number(T& value, AttrReader& in) {
  const std::string_view word = in.word();
  const auto [end, problem] = std::from_chars(word.data(), word.data() + word.size(), value);
  const std::string_view what = std::is_integral_v<T> ? "integer" : "number";
  if (problem == std::errc::result_out_of_range) in.refuse(fmt::format("{} of {} bits", what, 8 * sizeof(T)));
  if (problem != std::errc() || end != word.data() + word.size()) in.refuse(what);
}

void read_dims(Dims& value, AttrReader& in) {
  value = {};
  in.list([&] {
    std::int64_t size = 0;
    read_number(size, in);
    if (value.size() == kMaxDims) in.refuse(fmt::format("list of at most {} integers", kMaxDims));
    value.push_back(size);
  });
}

void read_dtype(DType& value, AttrReader& in) {
  const std::string_view word = in.word();
  for (const int i : up_to(kNumDTypes))
    if (const auto dtype = static_cast<DType>(i); name(dtype) == word) {
      value = dtype;
      return;
    }
  in.refuse("dtype (f64, f32, bf16, f16, i64, i32, u8, bool)");
}

// "cuda" means the first CUDA device.
std::string text_of(Device device) { return device == Device::cuda(0) ? "cuda" : to_string(device); }

void read_device(Device& value, AttrReader& in) {
  const std::string_view word = in.word();
  for (const Device device : {Device::cpu(), Device::meta(), Device::cuda(0)})
    if (text_of(device) == word) {
      value = device;
      return;
    }
  constexpr std::string_view kNumbered = "cuda:";
  const auto index =
      word.starts_with(kNumbered) ? number_of<std::uint8_t>(word.substr(kNumbered.size())) : std::nullopt;
  if (!index) in.refuse("device (cpu, meta, cuda, cuda:1)");
  value = Device::cuda(*index);
}

}  // namespace

template <PlainAttr T>
void AttrValue<T>::print(const T& value, AttrWriter& out) {
  if constexpr (is_one_of<T, bool>) {
    out.raw(value ? "true" : "false");
  } else if constexpr (is_one_of<T, std::uint64_t>) {
    out.raw(fmt::to_string(static_cast<std::int64_t>(value)));
  } else if constexpr (std::is_integral_v<T>) {
    out.raw(fmt::to_string(value));
  } else if constexpr (std::is_floating_point_v<T>) {
    out.raw(std::isnan(value) ? "nan" : fmt::to_string(static_cast<double>(value)));
  } else if constexpr (is_one_of<T, Dims>) {
    out.raw(out.is_rank_neutral() ? fmt::format("{}d", value.size()) : to_string(value));
  } else if constexpr (is_one_of<T, DType>) {
    out.raw(sherd::name(value));
  } else if constexpr (is_one_of<T, Device>) {
    out.raw(text_of(out.is_rank_neutral() ? Device{value.kind, 0} : value));
  } else {
    out.name(value);
  }
}

template <PlainAttr T>
void AttrValue<T>::read(T& value, AttrReader& in) {
  if constexpr (is_one_of<T, bool>) {
    const std::string_view word = in.word();
    if (word != "true" && word != "false") in.refuse("truth value (true, false)");
    value = word == "true";
  } else if constexpr (is_one_of<T, std::uint64_t>) {
    std::int64_t number = 0;
    read_number(number, in);
    value = static_cast<std::uint64_t>(number);
  } else if constexpr (std::is_arithmetic_v<T>) {
    read_number(value, in);
  } else if constexpr (is_one_of<T, Dims>) {
    read_dims(value, in);
  } else if constexpr (is_one_of<T, DType>) {
    read_dtype(value, in);
  } else if constexpr (is_one_of<T, Device>) {
    read_device(value, in);
  } else {
    value = in.name();
  }
}

template struct AttrValue<bool>;
template struct AttrValue<int>;
template struct AttrValue<std::int64_t>;
template struct AttrValue<std::uint64_t>;
template struct AttrValue<float>;
template struct AttrValue<double>;
template struct AttrValue<Dims>;
template struct AttrValue<DType>;
template struct AttrValue<Device>;
template struct AttrValue<std::string>;

}  // namespace sherd
