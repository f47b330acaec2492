#include "nn/parallel/shard/reduce/gradient_home.h"

#include "runtime/op/unit/buffer_views.h"

namespace sherd::nn {

namespace {
std::int64_t bytes_at_home(const Tensor& t) { return align(t.bytes()); }
std::int64_t first_byte(const Tensor& t) { return t.offset() * byte_size(t.dtype()); }
}  // namespace

// One storage that a step may name: its owner is the unit's.
GradientHome::GradientHome(UnitBuffers& buffers) : buffers_(buffers) {
  std::int64_t bytes = 0;
  std::vector<std::int64_t> offsets;
  for (std::size_t i = 0; i < buffers.pieces().size(); ++i) {
    offsets.push_back(bytes);
    bytes += align(numel(buffers.pieces().placement(i).local_shape) *
                   byte_size(buffers.pieces().layout().pieces[i].gradient_dtype()));
  }
  bytes_ = buffers.levels().home()->store()->allocate({bytes}, DType::u8);
  bytes_.storage()->owner = &buffers;
  name_ = name_storage(fmt::format("{} gradients", label_of(buffers.pieces().layout())), bytes_.storage());
  for (std::size_t i = 0; i < buffers.pieces().size(); ++i)
    pieces_.push_back(view_at(bytes_, buffers.pieces().placement(i).local_shape, offsets[i],
                              buffers.pieces().layout().pieces[i].gradient_dtype()));
}

GradientHome::~GradientHome() { bytes_.storage()->owner = nullptr; }

OffloadAttrs GradientHome::attrs() const {
  return {.device = buffers_.levels().home()->store()->device(), .in_flight = kShardsInFlight};
}

std::vector<Tensor> GradientHome::fetch(const std::vector<std::size_t>& members) const {
  if (members.empty()) return {};
  std::vector<Tensor> homes;
  for (const std::size_t i : members) homes.push_back(pieces_[i]);
  return parts_of(sherd::fetch(homes, attrs(), MemoryCategory::gradients), homes);
}

void GradientHome::evict(const std::vector<std::size_t>& members, const std::vector<Tensor>& here) const {
  for (std::size_t first = 0; first < members.size();) {
    std::vector<Tensor> homes{pieces_[members[first]]};
    const std::int64_t begin = first_byte(here[first]);
    std::int64_t end = begin + bytes_at_home(here[first]);
    std::size_t next = first + 1;
    for (; next < members.size(); ++next) {
      if (here[next].storage() != here[first].storage() || first_byte(here[next]) != end) break;
      homes.push_back(pieces_[members[next]]);
      end += bytes_at_home(here[next]);
    }
    sherd::evict(homes, run_at(here[first], end - begin, begin, DType::u8), attrs());
    first = next;
  }
}

}  // namespace sherd::nn
