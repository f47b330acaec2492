#pragma once
// What a plan chooses from: presets by name, and what leaves memory. Texts are those of `sherd train`'s flags.
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "nn/optim/loss_scaler.h"
#include "nn/optim/offloaded_state.h"
#include "nn/parallel/shard/unit/policy.h"
#include "nn/parallel/shard/wrap/unit_rules.h"
#include "nn/plan/text_value.h"
#include "nn/recompute.h"
#include "runtime/autograd/offload_saved.h"

namespace sherd::nn {

/// A value by its name, which `find` makes: its Error for an unknown one is that of the constructor.
template <auto find>
class Named {
 public:
  template <Text T>
  Named(const T& name) : name_(std::string_view(name)) {  // NOLINT: {.strategy = "no_shard"}
    value();
  }
  const std::string& text() const { return name_; }
  auto value() const { return find(name_); }
  friend bool operator==(const Named&, const Named&) = default;

 private:
  std::string name_;
};

/// A preset of UnitPolicy (policy.h): "full_shard".
using Strategy = Named<strategy>;
/// A rule of units (unit_rules.h): "block", "bytes=32MB".
using UnitsBy = Named<units_by>;
/// What backward computes again (recompute.h): "none", "selective" or "full".
using RecomputeBy = Named<recompute_policy>;

/// How parameters or gradients travel: "exact", or "int8": in 8 bits, with a scale per block.
class Travel {
 public:
  template <Text T>
  Travel(const T& text) : is_exact_(parse(text)) {}  // NOLINT: {.gather = "int8"}
  std::string text() const { return is_exact_ ? "exact" : "int8"; }
  bool is_exact() const { return is_exact_; }
  friend bool operator==(const Travel&, const Travel&) = default;

 private:
  static bool parse(std::string_view text);
  bool is_exact_;
};

/// Which layouts of ranks give the same bits: "default": those that add in the same order (docs/numerics.md), or
/// "layout_free": all that have as many leaves.
class Numerics {
 public:
  template <Text T>
  Numerics(const T& text) : layout_free_(parse(text)) {}  // NOLINT: {.numerics = "layout_free"}
  std::string text() const { return layout_free_ ? "layout_free" : "default"; }
  bool layout_free() const { return layout_free_; }
  friend bool operator==(const Numerics&, const Numerics&) = default;

 private:
  static bool parse(std::string_view text);
  bool layout_free_;
};

/// What the loss is multiplied by: "auto" (dynamic where a dtype is f16), "dynamic", "none" or a positive number.
class LossScale {
 public:
  /// Error naming them all.
  template <Text T>
  LossScale(const T& text) : LossScale(parse(text)) {}  // NOLINT: {.loss_scale = "dynamic"}
  const std::string& text() const { return text_; }
  /// Nothing where the loss is not scaled.
  std::optional<LossScaler::Options> options(bool has_f16) const;
  friend bool operator==(const LossScale&, const LossScale&) = default;

 private:
  LossScale(std::string text, std::optional<double> fixed) : text_(std::move(text)), fixed_(fixed) {}
  static LossScale parse(std::string_view text);
  std::string text_;
  std::optional<double> fixed_;
};

/// What lies outside of memory, and where: "none", "optimizer" (its state), "parameters" (their shards) or "all" (these
/// and the shards of gradients), perhaps with a folder, "all:DIR". Error naming what is wrong.
class Offload {
 public:
  template <Text T>
  Offload(const T& text) : Offload(parse(text)) {}  // NOLINT: {.offload = "optimizer"}
  std::string text() const { return what_ + (folder_.empty() ? "" : ":" + folder_); }
  bool any() const { return what_ != "none"; }
  bool optimizer() const { return what_ == "optimizer" || what_ == "all"; }
  bool parameters() const { return what_ == "parameters" || what_ == "all"; }
  bool gradients() const { return what_ == "all"; }
  /// Where state of parameters on `device` goes, and how much of it is in memory at a time, which is an eighth of a
  /// limit (0: none) or less. `kept` bytes of all that is offloaded stay in memory, of which state has one half
  /// and shards the other where both are offloaded: they are equally large. The folder of the host is that of temporary
  /// files where none is named.
  OffloadOptions state_options(std::int64_t kept, Device device, std::int64_t memory_limit) const;
  /// The same of shards; none if they stay in memory.
  std::optional<ShardOffload> shards(std::int64_t kept, Device device, std::int64_t memory_limit) const;
  friend bool operator==(const Offload&, const Offload&) = default;

 private:
  Offload(std::string_view what, std::string_view folder) : what_(what), folder_(folder) {}
  static Offload parse(std::string_view text);
  std::string what_, folder_;
};

/// Whether what blocks save for backward leaves memory, and for where: "none" or "blocks", perhaps with a folder,
/// "blocks:DIR". Error naming what is wrong.
class OffloadActivations {
 public:
  template <Text T>
  OffloadActivations(const T& text) : OffloadActivations(parse(text)) {}  // NOLINT: {.offload_activations = "blocks"}
  std::string text() const { return what_ + (folder_.empty() ? "" : ":" + folder_); }
  bool any() const { return what_ != "none"; }
  /// For training on `device`: where they go, and how much of them is in memory at a time, which is an eighth of a
  /// limit (0: none) or less.
  OffloadSavedOptions options(Device device, std::int64_t memory_limit) const;
  friend bool operator==(const OffloadActivations&, const OffloadActivations&) = default;

 private:
  OffloadActivations(std::string_view what, std::string_view folder) : what_(what), folder_(folder) {}
  static OffloadActivations parse(std::string_view text);
  std::string what_, folder_;
};

}  // namespace sherd::nn
