// Writing. The files are planned from names and shapes alone, so every rank has the same plan; then the tensors are
// gathered one by one and rank 0 appends them, so that no rank ever holds more than one full tensor.
#include <algorithm>
#include <filesystem>

#include <nlohmann/json.hpp>

#include "dtensor/api.h"
#include "nn/checkpoint/format/atomic_file.h"
#include "nn/checkpoint/format/folders.h"
#include "nn/checkpoint/training_state.h"
#include "nn/interop/huggingface.h"
#include "nn/interop/huggingface_config.h"
#include "nn/interop/huggingface_names.h"
#include "runtime/autograd/autograd.h"
#include "runtime/comm/group/agree.h"
#include "runtime/exec/context.h"
#include "runtime/op/copy/offload.h"
#include "runtime/op/rows/ops.h"
#include "runtime/tensor/indices.h"

namespace sherd::nn {

namespace {

namespace fs = std::filesystem;

/// One tensor of a file: parameters of ours stacked along dim 0, or, without any, zeros or a copy of a tensor of
/// `like`.
struct PlannedTensor {
  ckpt::TensorInfo info;
  std::vector<std::string> ours;
  bool transposed = false;
  bool is_zero = false;
};
struct PlannedFile {
  std::string name;
  std::vector<PlannedTensor> tensors;
  std::map<std::string, std::string> metadata{{"format", "pt"}};  // transformers refuses files without
  std::int64_t bytes = 0;
};

using Parameters = std::map<std::string, const Parameter*, std::less<>>;

/// The layer whose bias `name` would be if `config` had biases: theirs always have, and zeros are the same function.
std::optional<std::string_view> layer_without_bias(const LanguageModelConfig& config, std::string_view name) {
  constexpr std::string_view kBias = ".bias";
  const auto* const gpt = std::get_if<Gpt::Config>(&config);
  if (gpt == nullptr || gpt->bias || !name.ends_with(kBias)) return std::nullopt;
  name.remove_suffix(kBias.size());
  return name;
}

const Parameter& find_parameter(const Parameters& parameters, std::string_view name) {
  const auto found = parameters.find(name);
  check(found != parameters.end(), "the model has no parameter \"{}\", its config has", name);
  return *found->second;
}

std::vector<PlannedTensor> all_tensors(const LanguageModelConfig& config, const Parameters& parameters, DType dtype) {
  const NameTable& table = name_table(config);
  std::vector<PlannedTensor> tensors;
  const auto add = [&](const NameRule& rule, std::int64_t block) {
    PlannedTensor tensor{{name_in_block(rule.theirs, block), dtype, {}}, {}, rule.transposed};
    Shape& shape = tensor.info.shape;
    for (const std::string_view ours : rule.ours) {
      if (ours.empty()) continue;
      const std::string own = name_in_block(ours, block);
      Shape part;
      if (const auto layer = layer_without_bias(config, own)) {
        tensor.is_zero = true;
        part = {find_parameter(parameters, fmt::format("{}.weight", *layer)).shape()[0]};
      } else {
        tensor.ours.push_back(own);
        part = find_parameter(parameters, own).shape();
      }
      if (shape.empty()) shape = part;
      else shape[0] += part[0];
    }
    if (rule.transposed) std::swap(shape[0], shape[1]);
    tensors.push_back(std::move(tensor));
  };
  const auto [layers, tied] = std::visit([](const auto& c) { return std::pair(c.layers, c.tied_head); }, config);
  for (const NameRule& rule : table.rules)
    if (!is_per_block(rule)) add(rule, 0);
  for (const std::int64_t block : up_to(layers))
    for (const NameRule& rule : table.rules)
      if (is_per_block(rule)) add(rule, block);
  if (!tied) add(table.head, 0);
  return tensors;
}

/// Filled in order up to the limit; "model.safetensors", or "model-00001-of-00003.safetensors" and so on.
std::vector<PlannedFile> plan_files(std::vector<PlannedTensor> tensors, std::int64_t max_file_bytes) {
  std::vector<PlannedFile> files(1);
  for (PlannedTensor& tensor : tensors) {
    const std::int64_t bytes = ckpt::byte_count(tensor.info.dtype, tensor.info.shape);
    if (files.back().bytes > 0 && files.back().bytes + bytes > max_file_bytes) files.emplace_back();
    files.back().bytes += bytes;
    files.back().tensors.push_back(std::move(tensor));
  }
  for (const std::size_t i : indices(files))
    files[i].name =
        files.size() == 1 ? "model.safetensors" : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, files.size());
  return files;
}

/// The files of `like`, tensor by tensor.
std::vector<PlannedFile> plan_like(const std::vector<PlannedTensor>& tensors, const NameTable& table,
                                   const HuggingFaceWeights& like) {
  std::map<std::string, const PlannedTensor*> by_name;
  for (const PlannedTensor& tensor : tensors) {
    by_name[tensor.info.name] = &tensor;
    if (tensor.info.name.starts_with(table.prefix))
      by_name[tensor.info.name.substr(table.prefix.size())] = &tensor;  // of files without the prefix
  }
  std::vector<PlannedFile> files;
  for (const ckpt::SafetensorsFile& source : files_of(like)) {
    PlannedFile file{fs::path(source.path()).filename().string(), {}, source.metadata()};
    for (const ckpt::TensorEntry& entry : source.tensors()) {
      PlannedTensor tensor{entry, {}};
      if (const auto found = by_name.find(entry.name); found != by_name.end()) {
        tensor.ours = found->second->ours;
        tensor.transposed = found->second->transposed;
        tensor.is_zero = found->second->is_zero;
      } else if (entry.name == table.head.theirs) {
        tensor.ours = {std::string(kEmbedding)};  // tied, and stored all the same
      }
      file.bytes += entry.bytes;
      file.tensors.push_back(std::move(tensor));
    }
    files.push_back(std::move(file));
  }
  return files;
}

std::string index_text(const std::vector<PlannedFile>& files) {
  nlohmann::json map = nlohmann::json::object();
  std::int64_t total = 0;
  for (const PlannedFile& file : files) {
    total += file.bytes;
    for (const PlannedTensor& tensor : file.tensors) map[tensor.info.name] = file.name;
  }
  return nlohmann::json{{"metadata", {{"total_size", total}}}, {"weight_map", std::move(map)}}.dump(2) + "\n";
}

void write_text(const std::string& path, std::string_view text) {
  ckpt::AtomicFile file(path, static_cast<std::int64_t>(text.size()));
  file.write(std::as_bytes(std::span(text)));
  file.commit();
}

/// The tensor as stored in the file, on the host. Collective if the model is sharded; only rank 0 uses the result.
Tensor assemble(const PlannedTensor& tensor, const Parameters& parameters) {
  std::vector<Tensor> parts;
  for (const std::string& name : tensor.ours) {
    const Parameter& p = *parameters.at(name);
    const Tensor& value = p.sharded_value();
    parts.push_back(to(value.is_distributed() ? view(full_tensor(value), p.shape()) : value.detach(), Device::cpu()));
  }
  Tensor full = parts.size() == 1 ? parts[0] : cat(std::move(parts), 0);
  if (tensor.transposed) full = transpose(std::move(full), 0, 1);
  full = contiguous(cast(std::move(full), tensor.info.dtype));
  for (const std::string& name : tensor.ours) leave_memory(parameters.at(name)->sharded_value());
  return full;
}

void copy_stored(const HuggingFaceWeights& like, const std::string& name, ckpt::SafetensorsWriter& writer) {
  for (const ckpt::SafetensorsFile& file : files_of(like)) {
    const ckpt::TensorEntry* entry = file.find(name);
    if (!entry) continue;
    std::vector<std::byte> bytes(static_cast<std::size_t>(entry->bytes));
    file.read(*entry, 0, bytes);
    writer.write(bytes);
  }
}

void write_file(const std::string& folder, const PlannedFile& file, const Parameters& parameters, ProcessGroup& group,
                const HuggingFaceWeights* like) {
  std::optional<ckpt::SafetensorsWriter> writer;
  together(group, [&] {
    if (group.rank() != 0) return;
    std::vector<ckpt::TensorInfo> infos;
    for (const PlannedTensor& tensor : file.tensors) infos.push_back(tensor.info);
    writer.emplace((fs::path(folder) / file.name).string(), infos, file.metadata);
  });
  for (const PlannedTensor& tensor : file.tensors) {
    Tensor full;
    if (tensor.is_zero) full = zeros(tensor.info.shape, tensor.info.dtype);
    else if (!tensor.ours.empty()) full = assemble(tensor, parameters);
    together(group, [&] {
      if (group.rank() != 0) return;
      if (full.defined())
        writer->write({static_cast<const std::byte*>(full.raw()), static_cast<std::size_t>(full.bytes())});
      else copy_stored(*like, tensor.info.name, *writer);
    });
  }
  together(group, [&] {
    if (group.rank() == 0) writer->commit();
  });
}

}  // namespace

void save_huggingface(const std::string& dir, const LanguageModelConfig& config, LanguageModel& model,
                      ProcessGroup& group, const HuggingFaceWeights::SaveOptions& options) {
  check(!RankContext::current().is_ghost(),
        "save_huggingface to \"{}\": this rank is a ghost, whose parameters have no values to save", dir);
  GradMode off(false);
  const std::string folder = (fs::path(dir) / "").parent_path().string() + ".partial";
  Parameters parameters;
  for (const auto& [name, parameter] : model.named_parameters()) parameters[name] = parameter;
  std::vector<PlannedFile> files;
  std::string text;
  together(group, [&] {
    for (const auto& [name, parameter] : model.named_parameters()) check_whole({name, "param", parameter});
    text = config_to_huggingface(config, options.dtype);
    auto tensors = all_tensors(config, parameters, options.dtype);
    if (options.like) {
      check(text == config_to_huggingface(options.like->config(), options.dtype),
            "the model is not the one of \"{}\": its config.json would be\n{}", options.like->dir(), text);
      text = options.like->config_text();
      files = plan_like(tensors, name_table(config), *options.like);
    } else {
      files = plan_files(std::move(tensors), options.max_file_bytes);
    }
    if (group.rank() != 0) return;
    std::error_code error;
    check(!ckpt::is_file_there(dir) || (fs::is_directory(dir, error) && fs::is_empty(dir, error)),
          "\"{}\" exists and is not an empty folder; give the model a new one", dir);
    fs::remove_all(folder, error);  // what a killed save left
    ckpt::make_folders(folder);
  });
  for (const PlannedFile& file : files) write_file(folder, file, parameters, group, options.like);
  together(group, [&] {
    if (group.rank() != 0) return;
    const std::string index = options.like ? options.like->index_text() : files.size() > 1 ? index_text(files) : "";
    if (!index.empty()) write_text((fs::path(folder) / "model.safetensors.index.json").string(), index);
    write_text((fs::path(folder) / "config.json").string(), text);
    std::error_code error;
    fs::rename(folder, dir, error);
    check(!error, "cannot rename \"{}\" to \"{}\": {}", folder, dir, error.message());
  });
}

}  // namespace sherd::nn
