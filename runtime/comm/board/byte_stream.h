#pragma once
// A list of tensors as one stream of bytes, split into pieces that fit a window.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

namespace sherd::comm {

class ByteStream {
 public:
  /// Adjacent bytes of the stream.
  struct Range {
    std::byte* data;
    std::size_t bytes;
  };

  void add(const void* data, std::size_t bytes) {
    ranges_.push_back({static_cast<std::byte*>(const_cast<void*>(data)), bytes});
    size_ += bytes;
  }
  std::size_t size() const { return size_; }

  /// Copies bytes [at, at + up to `most`) of the stream out of the tensors, or into them. Returns how many.
  std::int64_t read(std::byte* to, std::size_t at, std::size_t most) const {
    return visit(at, most, [&](const Range& part) {
      std::memcpy(to, part.data, part.bytes);
      to += part.bytes;
    });
  }
  std::int64_t write(const std::byte* from, std::size_t at, std::size_t most) const {
    return visit(at, most, [&](const Range& part) {
      std::memcpy(part.data, from, part.bytes);
      from += part.bytes;
    });
  }

 private:
  template <class Fn>
  std::int64_t visit(std::size_t at, std::size_t most, Fn&& fn) const {
    std::int64_t visited = 0;
    for (const Range& range : ranges_) {
      if (at >= range.bytes) {
        at -= range.bytes;
        continue;
      }
      const std::size_t bytes = std::min(most, range.bytes - at);
      if (bytes == 0) break;
      fn(Range{range.data + at, bytes});
      visited += static_cast<std::int64_t>(bytes);
      most -= bytes;
      at = 0;
    }
    return visited;
  }

  std::vector<Range> ranges_;
  std::size_t size_ = 0;
};

}  // namespace sherd::comm
