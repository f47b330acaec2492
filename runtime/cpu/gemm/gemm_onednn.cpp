// libsherd_onednn.so: oneDNN behind the seam, and all that includes it. A primitive is made once per problem shape and
// kept by the thread that uses it (the library shares the generated code between threads). Scratchpads are ours, or the
// library would tie a primitive to the thread that made it; its OpenMP runtime is kept at one thread, because cutting
// the work is the seam's business, and because a parallel region would bind threads where OMP_PROC_BIND is set.
#include <algorithm>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>

#include <fmt/format.h>
#include <omp.h>
#include <dnnl.hpp>

#include "runtime/cpu/gemm/onednn.h"

namespace sherd::cpu {

namespace {

constexpr std::size_t kKeptPrimitives = 1024;

// All that a primitive depends on; compared and hashed as bytes, so every field is 8 bytes wide.
struct Key {
  std::int64_t m, n, k, lda, ldb, ldc, kind;
  friend bool operator==(const Key&, const Key&) = default;
};
Key key_of(const Gemm& g) {
  const int kind = (static_cast<int>(g.dtype) << 8) | (static_cast<int>(g.result) << 4) | (g.transpose_a << 3) |
                   (g.transpose_b << 2) | (static_cast<int>(g.accumulate) << 1) | static_cast<int>(g.bias != nullptr);
  return {g.m, g.n, g.k, g.lda, g.ldb, g.ldc, kind};
}
struct HashKey {
  std::size_t operator()(const Key& key) const {
    std::uint64_t h = 0x9E3779B97F4A7C15u;
    for (const std::int64_t field : {key.m, key.n, key.k, key.lda, key.ldb, key.ldc, key.kind}) {
      h = (h ^ static_cast<std::uint64_t>(field)) * 0xBF58476D1CE4E5B9u;
      h ^= h >> 29;
    }
    return h;
  }
};

std::optional<dnnl::memory::data_type> library_type(DType t) {
  if (t == DType::f32) return dnnl::memory::data_type::f32;
  if (t == DType::bf16) return dnnl::memory::data_type::bf16;
  return std::nullopt;
}

dnnl::memory::desc matrix(std::int64_t rows, std::int64_t columns, std::int64_t ld, bool transposed,
                          dnnl::memory::data_type type) {
  const dnnl::memory::dims strides = transposed ? dnnl::memory::dims{1, ld} : dnnl::memory::dims{ld, 1};
  return {{rows, columns}, type, strides};
}

// A primitive with its memory objects, whose pointers are set at each call. `primitive` is empty where the library
// says that it cannot.
struct Product {
  Product(const Gemm& g, const dnnl::engine& engine) {
    const auto in = *library_type(g.dtype), out = *library_type(g.result);
    const auto a = matrix(g.m, g.k, g.lda, g.transpose_a, in), b = matrix(g.k, g.n, g.ldb, g.transpose_b, in);
    const auto c = matrix(g.m, g.n, g.ldc, false, out);
    dnnl::primitive_attr attributes;
    attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    if (g.accumulate) {
      dnnl::post_ops add_to_c;
      add_to_c.append_sum(1.0f);
      attributes.set_post_ops(add_to_c);
    }
    try {
      const auto bias = matrix(1, g.n, g.n, false, out);
      const dnnl::matmul::desc operation = g.bias ? dnnl::matmul::desc(a, b, bias, c) : dnnl::matmul::desc(a, b, c);
      const dnnl::matmul::primitive_desc description(operation, attributes, engine);
      primitive = dnnl::matmul(description);
      scratch_bytes = static_cast<std::int64_t>(description.scratchpad_desc().get_size());
      arguments = {{DNNL_ARG_SRC, {a, engine, nullptr}},
                   {DNNL_ARG_WEIGHTS, {b, engine, nullptr}},
                   {DNNL_ARG_DST, {c, engine, nullptr}},
                   {DNNL_ARG_SCRATCHPAD, {description.scratchpad_desc(), engine, nullptr}}};
      if (g.bias) arguments.insert({DNNL_ARG_BIAS, {bias, engine, nullptr}});
    } catch (const dnnl::error& error) {
      if (error.status != dnnl_unimplemented) throw;
    }
  }
  void run(const dnnl::stream& stream, const void* a, const void* b, const void* bias, void* c, OnednnScratch scratch) {
    arguments.at(DNNL_ARG_SRC).set_data_handle(const_cast<void*>(a));
    arguments.at(DNNL_ARG_WEIGHTS).set_data_handle(const_cast<void*>(b));
    arguments.at(DNNL_ARG_DST).set_data_handle(c);
    if (bias) arguments.at(DNNL_ARG_BIAS).set_data_handle(const_cast<void*>(bias));
    if (scratch_bytes > 0) arguments.at(DNNL_ARG_SCRATCHPAD).set_data_handle(scratch(scratch_bytes));
    primitive->execute(stream, arguments);
  }
  std::optional<dnnl::matmul> primitive;
  std::int64_t scratch_bytes = 0;
  std::unordered_map<int, dnnl::memory> arguments;
};

class Library {
 public:
  Library() : engine_(dnnl::engine::kind::cpu, 0), stream_(engine_) { omp_set_num_threads(1); }
  bool run(const Gemm& g, const void* a, const void* b, void* c, OnednnScratch scratch) {
    const Key key = key_of(g);
    auto found = products_.find(key);
    if (found == products_.end()) {
      if (products_.size() >= kKeptPrimitives) products_.clear();
      found = products_.try_emplace(key, g, engine_).first;
    }
    if (!found->second.primitive) return false;
    found->second.run(stream_, a, b, g.bias, c, scratch);
    return true;
  }

 private:
  dnnl::engine engine_;
  dnnl::stream stream_;
  std::unordered_map<Key, Product, HashKey> products_;
};

constexpr std::pair<dnnl_cpu_isa_t, const char*> kInstructions[] = {
    {dnnl_cpu_isa_avx2, "avx2"},
    {dnnl_cpu_isa_avx2_vnni, "avx2_vnni"},
    {dnnl_cpu_isa_avx512_core, "avx512_core"},
    {dnnl_cpu_isa_avx512_core_vnni, "avx512_core_vnni"},
    {dnnl_cpu_isa_avx512_core_bf16, "avx512_core_bf16"},
    {dnnl_cpu_isa_avx512_core_amx, "avx512_core_amx"},
};

// ONEDNN_MAX_CPU_ISA may allow less than the CPU has. What later versions know is a number.
std::string version_text() {
  const dnnl_cpu_isa_t isa = dnnl_get_effective_cpu_isa();
  const auto* const known = std::ranges::find(kInstructions, isa, &std::pair<dnnl_cpu_isa_t, const char*>::first);
  const dnnl_version_t& v = *dnnl_version();
  return fmt::format("{}.{}.{} up to {}", v.major, v.minor, v.patch,
                     known != std::end(kInstructions) ? known->second : fmt::format("{:#x}", static_cast<int>(isa)));
}

}  // namespace

}  // namespace sherd::cpu

extern "C" const char* sherd_onednn_version() {
  static const std::string text = sherd::cpu::version_text();
  return text.c_str();
}

extern "C" bool sherd_onednn_gemm(const sherd::cpu::Gemm& g, const void* a, const void* b, void* c,
                                  sherd::cpu::OnednnScratch scratch) {
  using namespace sherd::cpu;
  if (!library_type(g.dtype) || !library_type(g.result)) return false;
  thread_local Library library;
  return library.run(g, a, b, c, scratch);
}
