#include "nn/parallel/shard/gather/gather_transform.h"

#include "runtime/op/rows/ops.h"
#include "runtime/op/unit/buffer_views.h"
#include "runtime/tensor/indices.h"

namespace sherd::nn {

namespace {

Shape shard_shape(const UnitLayout& unit, const UnitPiece& piece, int shard) {
  Shape shape = piece.shape;
  shape[piece.dim] = 1;
  const std::int64_t row = numel(shape);
  shape[piece.dim] = row == 0 ? 0 : unit.count(piece, shard) / row;
  return shape;
}

}  // namespace

TransformedGather::TransformedGather(GatherTransform transform, const UnitLayout& unit)
    : transform_(std::move(transform)) {
  const bool both = transform_.encode && transform_.decode;
  check(both, "the gather transform \"{}\" of unit \"{}\" has no {}: define both, or none", transform_.name, unit.name,
        transform_.encode   ? "decode, and nobody could compute with what is gathered"
        : transform_.decode ? "encode, and there would be nothing to decode"
                            : "encode and no decode");
  lay_out(unit);
}

TransformedGather::~TransformedGather() {
  if (!encoded_.defined()) return;
  encoded_.storage()->owner = nullptr;
  encoded_.storage()->release_data();
}

// On meta encode() tells shapes and types, of every rank's shard.
void TransformedGather::lay_out(const UnitLayout& unit) {
  UnitLayout layout{.name = unit.name,
                    .shard_axis = unit.shard_axis,
                    .replica_axis = unit.replica_axis,
                    .shards = unit.shards,
                    .shard = unit.shard,
                    .replicas = unit.replicas};
  std::vector<std::vector<Part>> parts(unit.pieces.size());
  for (std::size_t i = 0; i < unit.pieces.size(); ++i) {
    const UnitPiece& piece = unit.pieces[i];
    std::vector<UnitPiece> encoded;
    for (const int r : up_to(unit.shards)) {
      const std::vector<Tensor> tensors =
          transform_.encode(Tensor::empty(shard_shape(unit, piece, r), piece.dtype, Device::meta()));
      if (r == 0) encoded.resize(tensors.size());
      if (r == 0) parts[i].resize(tensors.size());
      check(tensors.size() == encoded.size(),
            "the gather transform \"{}\" of unit \"{}\" encodes {} as {} tensors on one rank and as {} on another",
            transform_.name, unit.name, piece.name, encoded.size(), tensors.size());
      for (const std::size_t k : indices(tensors)) {
        check(r == 0 || tensors[k].dtype() == encoded[k].dtype,
              "the gather transform \"{}\" of unit \"{}\" encodes {} as {} on one rank and as {} on another",
              transform_.name, unit.name, piece.name, sherd::name(encoded[k].dtype), sherd::name(tensors[k].dtype()));
        encoded[k].dtype = encoded[k].full_dtype = encoded[k].wire = tensors[k].dtype();
        encoded[k].rows.push_back(tensors[k].numel());
        parts[i][k].shapes.push_back(tensors[k].shape());
      }
    }
    for (const std::size_t k : indices(encoded)) {
      std::int64_t elements = 0;
      for (const std::int64_t count : encoded[k].rows) elements += count;
      encoded[k].shape = {elements};
      encoded[k].name = piece.name;
      encoded[k].shard_offset = layout.shard_bytes;
      encoded[k].full_offset = layout.full_bytes;
      layout.shard_bytes += align(layout.count_here(encoded[k]) * byte_size(encoded[k].dtype));
      layout.full_bytes += align(elements * byte_size(encoded[k].dtype));
      parts[i][k].piece = layout.pieces.size();
      layout.pieces.push_back(std::move(encoded[k]));
    }
  }
  cancel();
  layout_ = UnitLayout::intern(std::move(layout));
  unit_ = unit.shared();
  parts_ = std::move(parts);
  if (encoded_.defined()) encoded_.storage()->owner = nullptr;
  encoded_ = Tensor();
}

void TransformedGather::materialize(const UnitLayout& unit, Device device) {
  if (&unit != unit_.get()) lay_out(unit);  // its parameters have another type now
  if (encoded_.defined()) return;
  Ref<Storage> storage = Storage::released(layout_->full_bytes, MemoryCategory::communication, device);
  storage->owner = this;
  const Shape shape{layout_->full_bytes};
  encoded_ = Tensor::over(storage, shape, contiguous_strides(shape), 0, DType::u8);
  encoded_name_ = name_storage(label_of(*layout_) + " encoded", std::move(storage));
}

void TransformedGather::encode(const UnitLayout& unit, std::size_t piece, const Tensor& shards,
                               const Tensor& encoded) const {
  const UnitPiece& from = unit.pieces[piece];
  const auto here = static_cast<std::size_t>(unit.shard);
  const std::vector<Tensor> tensors =
      transform_.encode(view_at(shards, shard_shape(unit, from, unit.shard), from.shard_offset, from.dtype));
  check(tensors.size() == parts_[piece].size(),
        "the gather transform \"{}\" of unit \"{}\" encodes {} as {} tensors, and on meta as {}", transform_.name,
        unit.name, from.name, tensors.size(), parts_[piece].size());
  for (const std::size_t k : indices(tensors)) {
    const Part& part = parts_[piece][k];
    const UnitPiece& to = layout_->pieces[part.piece];
    if (tensors[k].dtype() != to.dtype || tensors[k].shape() != part.shapes[here])
      fail("the gather transform \"{}\" of unit \"{}\" encodes {} as {}, and on meta as {}{}", transform_.name,
           unit.name, from.name, tensors[k], sherd::name(to.dtype), part.shapes[here]);
    copy_into(view_at(encoded, part.shapes[here], to.shard_offset, to.dtype), tensors[k]);
  }
}

void TransformedGather::start(const UnitLayout& unit, const Tensor& shards, const Tensor& full) {
  materialize(unit, full.device());
  const Tensor encoded = communication_buffer(layout_->shard_bytes, full.device());
  for (const std::size_t i : indices(unit.pieces)) encode(unit, i, shards, encoded);
  start_gather(*layout_, encoded, encoded_);
}

void TransformedGather::decode(const UnitLayout& unit, std::size_t piece, const Tensor& full) const {
  const UnitPiece& to = unit.pieces[piece];
  const Tensor whole = view_at(full, to.shape, to.full_offset, to.full_dtype);
  std::int64_t begin = 0;                                // of a shard's rows
  std::vector<std::int64_t> from(parts_[piece].size());  // bytes of each part that earlier shards have
  std::vector<Tensor> tensors(from.size());
  for (const int r : up_to(unit.shards)) {
    for (const std::size_t k : indices(from)) {
      const Part& part = parts_[piece][k];
      const UnitPiece& at = layout_->pieces[part.piece];
      tensors[k] = view_at(encoded_, part.shapes[static_cast<std::size_t>(r)], at.full_offset + from[k], at.dtype);
      from[k] += tensors[k].bytes();
    }
    const Tensor rows = narrow(whole, to.dim, begin, shard_shape(unit, to, r)[to.dim]);
    begin += rows.size(to.dim);
    if (rows.numel() > 0) transform_.decode(tensors, rows);
  }
}

void TransformedGather::finish(const UnitLayout& unit, const Tensor&, const Tensor& full) {
  restore_unit(unit, full);
  for (const std::size_t i : indices(unit.pieces)) decode(unit, i, full);
  release_unit(*layout_, encoded_);
}

void TransformedGather::cancel() {
  if (encoded_.defined() && encoded_.storage()->is_present()) release_unit(*layout_, encoded_);
}

void TransformedGather::ensure_present(Storage&) {
  fail("the encoded parameters of unit \"{}\" are there during a gather only", layout_->name);
}

}  // namespace sherd::nn
