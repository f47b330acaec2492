#pragma once
// Attention of one context: cuDNN's where it takes the call, own kernels else.
#include <memory>
#include <string>

#include "runtime/cuda/attention/attention_kernels.h"

namespace sherd::cuda {

class Context;

enum class AttentionChoice : std::uint8_t {
  fast,           ///< cuDNN where it applies; the order in which it sums the queries' gradient is not fixed
  deterministic,  ///< cuDNN where it applies, with fixed orders: b h tq tk elements of workspace in backward
  own,            ///< own kernels only; fixed orders
};
/// "fast", "deterministic", "own"; "": fast, or deterministic where bits are to be reproducible. Throws Error on
/// anything else, and on fast there.
AttentionChoice attention_choice(const std::string& asked, bool is_reproducible = false);
/// A line of `sherd info`.
std::string describe_attention();

/// Attention by a library. A call that it does not take queues nothing.
class AttentionLibrary {
 public:
  virtual ~AttentionLibrary() = default;
  virtual bool forward(const AttentionShape& shape, const AttentionForward& tensors) = 0;
  /// Does not use tensors.dot.
  virtual bool backward(const AttentionShape& shape, const AttentionBackward& tensors, bool deterministic) = 0;
};

/// cuDNN for a context, or null if this host or this build has none: describe_cudnn() says why.
std::unique_ptr<AttentionLibrary> open_cudnn(Context& context);
std::string describe_cudnn();

class Attention {
 public:
  explicit Attention(Context& context);
  void choose(AttentionChoice choice) { choice_ = choice; }
  void forward(const AttentionShape& shape, const AttentionForward& tensors);
  /// `tensors.dot` is filled in.
  void backward(const AttentionShape& shape, AttentionBackward tensors);

 private:
  AttentionLibrary* library();

  Context& context_;
  AttentionChoice choice_;
  bool asked_ = false;  // for the library
  std::unique_ptr<AttentionLibrary> library_;
};

}  // namespace sherd::cuda
