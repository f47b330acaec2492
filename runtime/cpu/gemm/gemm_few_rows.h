#pragma once
#include "runtime/cpu/gemm/gemm.h"

namespace sherd::cpu {

/// Products of at most kBlockRows rows (decoding a token, a last small batch), for which packing B would cost more than
/// they do. False, and nothing written, if `g` is none or B must be packed for other reasons.
bool gemm_few_rows(const Gemm& g, const void* a, const void* b, void* c);

}  // namespace sherd::cpu
