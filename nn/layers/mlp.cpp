#include "nn/layers/mlp.h"

namespace sherd::nn {

GeluMlp::GeluMlp(const Options& o)
    : up(add<Linear>("up", o.width, o.hidden, LinearOptions{o.bias, o.init})),
      down(add<Linear>("down", o.hidden, o.width, LinearOptions{o.bias, o.output_init})),
      gelu_(o.gelu) {}

Tensor GeluMlp::forward(const Tensor& x) { return down(gelu(up(x), gelu_)); }

SwiGluMlp::SwiGluMlp(const Options& o)
    : w1(add<Linear>("w1", o.width, o.hidden, LinearOptions{false, o.init})),
      w3(add<Linear>("w3", o.width, o.hidden, LinearOptions{false, o.init})),
      w2(add<Linear>("w2", o.hidden, o.width, LinearOptions{false, o.output_init})) {}

Tensor SwiGluMlp::forward(const Tensor& x) { return w2(swiglu(w1(x), w3(x))); }

}  // namespace sherd::nn
