#pragma once
// Sums of products written by subscripts. A composition of rows (views, matmul, linear, mul, sum), so gradients,
// capture, devices and sharding come from those.
#include <concepts>
#include <span>
#include <string_view>

#include "runtime/op/core/tensor.h"

namespace sherd {

/// "bqhd,bkhd->bhqk": a letter per dim, the same letter for dims that go together; letters that the output lacks are
/// summed over. As PyTorch has it: blanks mean nothing; "..." stands for any dims, which broadcast; without "->" the
/// result has the dims of "..." and then the letters that occur once, in the order of the alphabet; a letter twice in
/// one operand takes its diagonal; a size of 1 broadcasts along its letter.
/// Operands have one dtype, which the result has too. A pair of floating ones that share a summed letter, and do not
/// share all, is one matmul (or linear, when the right one is [out, in]) that reads transposed operands in place;
/// any other is a mul, and a sum.
/// Three or more operands are multiplied pair by pair: pairs that share a letter first, among them the pair whose
/// product takes the least memory beyond its operands', of equals the leftmost.
/// Distributed operands: nothing moves if each mesh axis shards one letter, in all operands that have it, some of
/// which may be replicated. The result is sharded along letters that stay, and Partial(sum) over axes of summed ones.
/// Several letters that become one matrix dim are led by a sharded one, if its shards are equal; other sharded ones
/// become batch dims, whose gradients and sums take memory for each. What does move: operands of which one axis shards
/// different letters, a sharded dim of a diagonal, and Partial sums of integers.
/// Blocking: as its rows. Error, naming letter or operand: malformed text, other numbers of operands or dims, an output
/// letter in no operand, sizes or dtypes that differ; an intermediate result of more dims than a tensor may have.
Tensor einsum(std::string_view equation, std::span<const Tensor> operands);

/// einsum("ij,jk->ik", a, b).
template <class... Operands>
  requires(sizeof...(Operands) > 0 && (std::convertible_to<const Operands&, Tensor> && ...))
Tensor einsum(std::string_view equation, const Operands&... operands) {
  const Tensor list[] = {operands...};
  return einsum(equation, std::span<const Tensor>(list));
}

}  // namespace sherd
