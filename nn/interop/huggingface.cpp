// Reading. Nothing in the directory is trusted: names in the index stay inside it, every tensor is in the file that the
// index says, and what the model does not know is an error unless the name table ignores it.
#include "nn/interop/huggingface.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <set>

#include "nn/checkpoint/format/bounded_json.h"
#include "nn/checkpoint/format/folders.h"
#include "nn/checkpoint/format/input_file.h"
#include "nn/checkpoint/local_box.h"
#include "nn/interop/huggingface_config.h"
#include "nn/interop/huggingface_names.h"
#include "runtime/autograd/autograd.h"
#include "runtime/exec/context.h"
#include "runtime/op/copy/offload.h"
#include "runtime/op/rows/ops.h"
#include "runtime/tensor/indices.h"

namespace sherd::nn {

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr std::int64_t kMaxTextBytes = 100'000'000;

std::string path_in(const std::string& dir, std::string_view name) { return (fs::path(dir) / name).string(); }

/// Which file each tensor is in.
struct Index {
  std::set<std::string> files;  ///< plain names: nothing that leads out of the directory
  std::map<std::string, const std::string*> file_of;
};

Index parse_index(const std::string& path, std::string_view text) {
  Index index;
  ckpt::JsonMembers map{.name = "weight_map"};
  map.each = [&](const std::string& tensor, const json& file) {
    if (!file.is_string()) fail("tensor \"{}\" is in {}, which is no file name", tensor, ckpt::shown(file));
    const auto& name = file.get_ref<const std::string&>();
    check(!name.empty() && name != "." && name != ".." && name.find('/') == name.npos && name.find('\0') == name.npos,
          "tensor \"{}\" is in \"{}\", which is not the name of a file beside the index", tensor, name);
    check(index.file_of.emplace(tensor, &*index.files.insert(name).first).second, "the name \"{}\" stands twice",
          tensor);
  };
  try {
    ckpt::read_json(text, {.large = {map}});
  } catch (const Error& error) { fail("\"{}\": {}", path, error.message()); }
  return index;
}

std::span<std::byte> bytes_of(const Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.raw()), static_cast<std::size_t>(tensor.bytes())};
}

std::int64_t num_layers(const LanguageModelConfig& config) {
  return std::visit([](const auto& c) { return c.layers; }, config);
}
bool has_tied_head(const LanguageModelConfig& config) {
  return std::visit([](const auto& c) { return c.tied_head; }, config);
}

}  // namespace

bool HuggingFaceWeights::is_at(const std::string& dir) {
  std::error_code ignored;
  return fs::exists(path_in(dir, "config.json"), ignored);
}

HuggingFaceWeights::HuggingFaceWeights(std::string dir) : dir_(std::move(dir)) {
  const std::string path = path_in(dir_, "config.json");
  config_text_ = ckpt::read_text(ckpt::InputFile(path), kMaxTextBytes);
  try {
    config_ = config_from_huggingface(config_text_);
  } catch (const Error& error) { fail("\"{}\": {}", path, error.message()); }
  open_files();
  match_shapes(match_names());
}

void HuggingFaceWeights::open_files() {
  const std::string single = path_in(dir_, "model.safetensors"), path = path_in(dir_, "model.safetensors.index.json");
  Index index;
  if (ckpt::is_file_there(single)) {
    files_.push_back(ckpt::SafetensorsFile::open(single));
  } else {
    check(ckpt::is_file_there(path), "\"{}\" holds neither model.safetensors nor model.safetensors.index.json{}", dir_,
          ckpt::is_file_there(path_in(dir_, "pytorch_model.bin")) ? "; save its pytorch_model.bin as safetensors first"
                                                                  : "");
    index_text_ = ckpt::read_text(ckpt::InputFile(path), kMaxTextBytes);
    index = parse_index(path, index_text_);
    for (const std::string& name : index.files) {
      check(ckpt::is_file_there(path_in(dir_, name)), "\"{}\" names the file \"{}\", which is not there", path, name);
      files_.push_back(ckpt::SafetensorsFile::open(path_in(dir_, name)));
    }
  }
  for (const ckpt::SafetensorsFile& file : files_)
    for (const ckpt::TensorEntry& tensor : file.tensors()) {
      if (!index_text_.empty()) {
        const auto listed = index.file_of.find(tensor.name);
        const bool is_listed = listed != index.file_of.end();
        check(is_listed && path_in(dir_, *listed->second) == file.path(),
              "\"{}\" holds tensor \"{}\", of which \"{}\" says {}", file.path(), tensor.name, path,
              is_listed ? "that it is in " + *listed->second : "nothing");
      }
      stored_[tensor.name] = {&file, &tensor};
    }
  for (const auto& [tensor, file] : index.file_of)
    check(stored_.contains(tensor), "\"{}\" says that tensor \"{}\" is in \"{}\", which does not hold it", path, tensor,
          *file);
}

const HuggingFaceWeights::Stored* HuggingFaceWeights::find_stored(std::string_view name) const {
  const std::string_view prefix = name_table(config_).prefix;
  if (!has_prefix_ && name.starts_with(prefix)) name.remove_prefix(prefix.size());
  const auto found = stored_.find(name);
  return found == stored_.end() ? nullptr : &found->second;
}

std::vector<HuggingFaceWeights::Match> HuggingFaceWeights::match_names() {
  const NameTable& table = name_table(config_);
  has_prefix_ =
      std::any_of(stored_.begin(), stored_.end(), [&](const auto& t) { return t.first.starts_with(table.prefix); });
  std::vector<Match> matches;
  std::set<const ckpt::TensorEntry*> known;
  const auto take = [&](const NameRule& rule, std::int64_t block) {
    const std::string name = name_in_block(rule.theirs, block);
    const Stored* stored = find_stored(name);
    // A file may hold either of two that are tied.
    if (!stored && has_tied_head(config_) && rule.ours[0] == kEmbedding) stored = find_stored(table.head.theirs);
    check(stored, "\"{}\" lacks the tensor \"{}\" of the model that its config.json describes", dir_, name);
    known.insert(stored->entry);
    Match match{*stored, {}, rule.transposed};
    for (const std::string_view ours : rule.ours)
      if (!ours.empty()) match.ours.push_back(name_in_block(ours, block));
    matches.push_back(std::move(match));
  };
  for (const NameRule& rule : table.rules)
    if (!is_per_block(rule)) take(rule, 0);
  for (const std::int64_t block : up_to(num_layers(config_)))
    for (const NameRule& rule : table.rules)
      if (is_per_block(rule)) take(rule, block);
  if (!has_tied_head(config_)) {
    take(table.head, 0);
  } else if (const Stored* copy = find_stored(table.head.theirs); copy && !known.contains(copy->entry)) {
    known.insert(copy->entry);
    tied_head_ = Source{*copy, copy->entry->shape};
  }

  const auto is_ignored = [&](std::string_view name) {
    return std::any_of(table.ignored.begin(), table.ignored.end(), [&](std::string_view pattern) {
      return matches_pattern(name, has_prefix_ ? pattern : pattern.substr(table.prefix.size()));
    });
  };
  for (const auto& [name, stored] : stored_)
    check(known.contains(stored.entry) || is_ignored(name),
          "\"{}\" holds the tensor \"{}\", which the model that config.json describes does not have",
          stored.file->path(), name);
  return matches;
}

void HuggingFaceWeights::match_shapes(const std::vector<Match>& matches) {
  const auto model = make_language_model(config_);
  std::map<std::string, Shape> shapes;
  for (const auto& [name, parameter] : model->named_parameters()) shapes[name] = parameter->shape();
  for (const Match& match : matches) {
    const ckpt::TensorEntry& entry = *match.stored.entry;
    Shape stacked;
    for (const std::string& name : match.ours) {
      const Shape& shape = shapes.at(name);
      sources_[name] = {match.stored, shape, stacked.empty() ? 0 : stacked[0], match.transposed};
      if (stacked.empty()) stacked = shape;
      else stacked[0] += shape[0];
    }
    if (match.transposed) std::swap(stacked[0], stacked[1]);
    const std::string where = fmt::format("\"{}\": tensor \"{}\"", match.stored.file->path(), entry.name);
    check(entry.shape == stacked, "{} has the shape {}; config.json gives {}", where, to_string(entry.shape),
          to_string(stacked));
    check(entry.dtype == DType::f32 || entry.dtype == DType::bf16 || entry.dtype == DType::f16,
          "{} is of {}; weights are f32, bf16 or f16", where, name(entry.dtype));
  }
  for (const auto& [name, shape] : shapes)
    check(sources_.contains(name), "the name table has no tensor for our parameter \"{}\"", name);
  if (!tied_head_) return;
  const ckpt::TensorEntry &head = *tied_head_->stored.entry,
                          &embedding = *sources_.at(std::string(kEmbedding)).stored.entry;
  check(head.shape == embedding.shape && head.dtype == embedding.dtype,
        "\"{}\": tensor \"{}\" is {}{}, but it is tied to \"{}\", which is {}{}", tied_head_->stored.file->path(),
        head.name, name(head.dtype), to_string(head.shape), embedding.name, name(embedding.dtype),
        to_string(embedding.shape));
}

Tensor HuggingFaceWeights::read_rows(const Source& source, std::int64_t row, std::int64_t count) const {
  const auto& [file, entry] = source.stored;
  const std::int64_t element = byte_size(entry->dtype), first = source.first_row + row;
  if (!source.transposed) {
    Tensor rows = Tensor::empty(ckpt::rows_box(entry->shape, 0, count).shape, entry->dtype);
    file->read(*entry, first * ckpt::byte_count(entry->dtype, ckpt::rows_box(entry->shape, 0, 1).shape),
               bytes_of(rows));
    return rows;
  }
  // Our rows are columns there: one read per stored row, or a single one for all columns.
  const std::int64_t stored_rows = entry->shape[0], columns = entry->shape[1];
  Tensor turned = Tensor::empty({stored_rows, count}, entry->dtype);
  if (count == columns) file->read(*entry, 0, bytes_of(turned));
  else
    for (const std::int64_t r : up_to(stored_rows))
      file->read(*entry, (r * columns + first) * element,
                 bytes_of(turned).subspan(static_cast<std::size_t>(r * count * element),
                                          static_cast<std::size_t>(count * element)));
  return transpose(std::move(turned), 0, 1);
}

void HuggingFaceWeights::check_tied_head(const Source& embedding, std::int64_t row, std::int64_t count) const {
  const Tensor a = read_rows(embedding, row, count), b = read_rows(*tied_head_, row, count);
  check(a.bytes() == b.bytes() && std::memcmp(a.raw(), b.raw(), static_cast<std::size_t>(a.bytes())) == 0,
        "\"{}\": tensor \"{}\" differs from \"{}\", to which config.json ties it (\"tie_word_embeddings\")",
        tied_head_->stored.file->path(), tied_head_->stored.entry->name, embedding.stored.entry->name);
}

// Rows and columns that this rank has of it.
void HuggingFaceWeights::load(const std::string& name, const Source& source, Parameter& parameter) const {
  const Tensor& value = parameter.sharded_value();
  if (home_of(value)) value.local().storage()->settle();  // all of it is written: a write that failed is no error
  for (const auto& [box, values] : ckpt::local_parts(value, parameter.shape())) {
    if (numel(box) > 0) {
      Tensor part = read_rows(source, box.offset[0], box.shape[0]);
      for (int d = 1; d < part.ndim(); ++d) part = narrow(std::move(part), d, box.offset[d], box.shape[d]);
      copy_into(values, std::move(part));
    }
    if (tied_head_ && name == kEmbedding) check_tied_head(source, box.offset[0], box.shape[0]);
  }
  leave_memory(value);
  parameter.reshard();  // what is gathered of the old values is stale
  parameter.mark_initialised();
}

void HuggingFaceWeights::load(LanguageModel& model) const {
  check(!RankContext::current().is_ghost(),
        "the weights of \"{}\": this rank is a ghost and has no bytes for them; a model that is materialised holds the "
        "same memory",
        dir_);
  GradMode off(false);
  std::vector<Parameter*> changed;
  try {
    for (const auto& [name, parameter] : model.named_parameters()) {
      const auto source = sources_.find(name);
      check(source != sources_.end() && source->second.shape == parameter->shape(),
            "\"{}\" holds no {}{}, which the model to be loaded has", dir_, name, to_string(parameter->shape()));
      check(!parameter->sharded_value().local().is_meta(),
            "\"{}\" has no memory to load its values into; call model.materialize() first", name);
      changed.push_back(parameter);
      load(name, source->second, *parameter);
    }
  } catch (...) {  // part of the model is the directory's, and part is not
    const std::string reason = fmt::format("a load has failed ({})", current_exception_text());
    for (Parameter* parameter : changed) parameter->mark_torn(reason);
    throw;
  }
  for (Parameter* parameter : changed) parameter->mark_whole();
}

}  // namespace sherd::nn
