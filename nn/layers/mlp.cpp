#include "nn/layers/mlp.h"

namespace sherd::nn {

GeluMlp::GeluMlp(const Options& o)
    : up(add<Linear>("up", o.width, o.hidden, Linear::Options{o.bias, o.init})),
      down(add<Linear>("down", o.hidden, o.width, Linear::Options{o.bias, o.output_init})),
      tanh_gelu_(o.tanh_gelu) {}

Tensor GeluMlp::forward(const Tensor& x) { return down(tanh_gelu_ ? gelu_tanh(up(x)) : gelu(up(x))); }

SwiGluMlp::SwiGluMlp(const Options& o)
    : w1(add<Linear>("w1", o.width, o.hidden, Linear::Options{false, o.init})),
      w3(add<Linear>("w3", o.width, o.hidden, Linear::Options{false, o.init})),
      w2(add<Linear>("w2", o.hidden, o.width, Linear::Options{false, o.output_init})) {}

Tensor SwiGluMlp::forward(const Tensor& x) { return w2(swiglu(w1(x), w3(x))); }

}  // namespace sherd::nn
