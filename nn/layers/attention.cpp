#include "nn/layers/attention.h"

#include "runtime/op/rows/ops.h"

namespace sherd::nn {

namespace {
const Attention::Options& checked(const Attention::Options& o) {
  check(o.heads > 0 && o.width % o.heads == 0, "attention: width {} does not divide into {} heads", o.width, o.heads);
  check(o.kv_heads > 0 && o.heads % o.kv_heads == 0, "attention: {} heads do not share {} key-value heads", o.heads,
        o.kv_heads);
  return o;
}
// [B, T, H*K] -> [B, H, T, K], a view
Tensor split_heads(Tensor x, std::int64_t heads) {
  const std::int64_t b = x.size(0), t = x.size(1), k = x.size(2) / heads;
  return transpose(view(std::move(x), {b, t, heads, k}), 1, 2);
}
}  // namespace

Attention::Attention(const Options& o)
    : wq(add<Linear>("wq", checked(o).width, o.width, Linear::Options{o.bias, o.init})),
      wk(add<Linear>("wk", o.width, o.width / o.heads * o.kv_heads, Linear::Options{o.bias, o.init})),
      wv(add<Linear>("wv", o.width, o.width / o.heads * o.kv_heads, Linear::Options{o.bias, o.init})),
      wo(add<Linear>("wo", o.width, o.width, Linear::Options{o.bias, o.output_init})),
      options_(o) {}

Tensor Attention::forward(const Tensor& x) {
  Tensor q = split_heads(wq(x), options_.heads);     // [B, H, T, K]
  Tensor k = split_heads(wk(x), options_.kv_heads);  // [B, Hkv, T, K]
  Tensor v = split_heads(wv(x), options_.kv_heads);
  if (options_.rope_theta) {
    q = rope(std::move(q), *options_.rope_theta);
    k = rope(std::move(k), *options_.rope_theta);
  }
  Tensor y = scaled_dot_product_attention(std::move(q), std::move(k), std::move(v));  // [B, H, T, K]
  return wo(reshape(transpose(std::move(y), 1, 2), x.shape()));
}

}  // namespace sherd::nn
