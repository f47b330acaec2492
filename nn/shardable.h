#pragma once
// What tensor parallelism may shard of a layer. A layer that says so takes the styles of Linear or Embedding:
//
//   struct Conv1D : nn::Layer<Conv1D>, nn::Shardable {                       // weight [in, out], as GPT-2 has it
//     Roles roles() const override { return {.out = {{"weight", 1}, {"bias", 0}}, .in = {{"weight", 0}}}; }
//   };
//   nn::parallelize(model, tp, {{"blocks.*.up", nn::colwise()}});
#include <cstdint>
#include <string>
#include <vector>

namespace sherd::nn {

class Shardable {
 public:
  struct Roles {
    struct Dim {
      std::string parameter;  ///< of the module's own
      int dim;
    };
    std::vector<Dim> out{};         ///< output features: what colwise() shards
    std::vector<Dim> in{};          ///< input features of a linear layer: what rowwise() shards
    std::vector<Dim> vocabulary{};  ///< rows of an embedding: what rowwise() shards
    /// Heads and key-value heads, which parameters below the module compute; a rank must hold complete ones.
    std::int64_t heads = 0, kv_heads = 0;
  };
  virtual Roles roles() const = 0;

 protected:
  ~Shardable() = default;
};

}  // namespace sherd::nn
