// What the emulated cuBLASLt refuses, rule by rule, around a call that it takes.
#include <cublasLt.h>
#include <gtest/gtest.h>

#include "tests/cuda/device_memory.h"
#include "tests/cuda/emulated_gpu/fixture.h"

namespace sherd::cuda {

namespace {

// D [2, 3] = A [2, 4] B [4, 3], column-major, by the favourite algorithm, which takes 48 bytes of workspace.
class EmulatedCublasLt : public EmulatedTest {
 protected:
  EmulatedCublasLt()
      : a_(stream_, {1, 2, 3, 4, 5, 6, 7, 8, 9}),
        b_(stream_, {1, 0, 0, 0, 0, 1, 0, 0, 1, 1, 1, 1}),
        d_(stream_, std::vector<float>(16, -1)),
        workspace_(64) {
    EXPECT_EQ(cublasLtCreate(&handle_), CUBLAS_STATUS_SUCCESS);
    EXPECT_EQ(cublasLtMatmulDescCreate(&operation_, CUBLAS_COMPUTE_32F, CUDA_R_32F), CUBLAS_STATUS_SUCCESS);
    layout_a_ = layout(2, 4, 2);
    layout_b_ = layout(4, 3, 4);
    layout_d_ = layout(2, 3, 2);
    EXPECT_EQ(cublasLtMatmulPreferenceCreate(&preference_), CUBLAS_STATUS_SUCCESS);
    const std::uint64_t bytes = 64;
    const std::uint32_t schemes = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, bytes);
    prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, schemes);
  }
  ~EmulatedCublasLt() override {
    for (const auto l : layouts_) (void)cublasLtMatrixLayoutDestroy(l);
    (void)cublasLtMatmulPreferenceDestroy(preference_);
    (void)cublasLtMatmulDescDestroy(operation_);
    (void)cublasLtDestroy(handle_);
  }
  cublasLtMatrixLayout_t layout(std::uint64_t rows, std::uint64_t columns, std::int64_t ld,
                                cudaDataType_t type = CUDA_R_32F) {
    cublasLtMatrixLayout_t made = nullptr;
    EXPECT_EQ(cublasLtMatrixLayoutCreate(&made, type, rows, columns, ld), CUBLAS_STATUS_SUCCESS);
    layouts_.push_back(made);
    return made;
  }
  template <class T>
  void prefer(cublasLtMatmulPreferenceAttributes_t attribute, T value) {
    EXPECT_EQ(cublasLtMatmulPreferenceSetAttribute(preference_, attribute, &value, sizeof value),
              CUBLAS_STATUS_SUCCESS);
  }
  std::vector<cublasLtMatmulHeuristicResult_t> heuristics(int count = 8) {
    std::vector<cublasLtMatmulHeuristicResult_t> results(static_cast<std::size_t>(count));
    int found = 0;
    status_ = cublasLtMatmulAlgoGetHeuristic(handle_, operation_, layout_a_, layout_b_, layout_d_, layout_d_,
                                             preference_, count, results.data(), &found);
    results.resize(static_cast<std::size_t>(found));
    return results;
  }
  cublasStatus_t run(const cublasLtMatmulAlgo_t& algo, const float* a, void* workspace, std::size_t bytes) {
    const float one = 1, zero = 0;
    return cublasLtMatmul(handle_, operation_, &one, a, layout_a_, b_.data(), layout_b_, &zero, d_.data(), layout_d_,
                          d_.data(), layout_d_, &algo, workspace, bytes, stream_);
  }
  cublasStatus_t run() {
    const auto results = heuristics();
    return results.empty() ? status_ : run(results[0].algo, a_.data(), workspace_.data(), 64);
  }

  const TestStream stream_;
  const DeviceArray<float> a_, b_, d_, workspace_;
  cublasLtHandle_t handle_ = nullptr;
  cublasLtMatmulDesc_t operation_ = nullptr;
  cublasLtMatrixLayout_t layout_a_, layout_b_, layout_d_;
  cublasLtMatmulPreference_t preference_ = nullptr;
  std::vector<cublasLtMatrixLayout_t> layouts_;
  cublasStatus_t status_ = CUBLAS_STATUS_SUCCESS;
};

TEST_F(EmulatedCublasLt, MultipliesColumnMajorMatrices) {
  ASSERT_EQ(run(), CUBLAS_STATUS_SUCCESS);
  const std::vector<float> d = d_.read(stream_);
  // Columns of A are (1,2) (3,4) (5,6) (7,8); B picks the first, the second, and the sum of all.
  EXPECT_EQ(std::vector<float>(d.begin(), d.begin() + 7), (std::vector<float>{1, 2, 3, 4, 16, 20, -1}));
}

TEST_F(EmulatedCublasLt, WorkspaceThatIsMissingOrSmall) {
  const auto algo = heuristics()[0].algo;
  EXPECT_EQ(run(algo, a_.data(), nullptr, 64), CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(run(algo, a_.data(), workspace_.data(), 47), CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(run(algo, a_.data(), workspace_.data() + 1, 48), CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(run(algo, a_.data(), workspace_.data(), 48), CUBLAS_STATUS_SUCCESS);
}

TEST_F(EmulatedCublasLt, AlgorithmsThatNeedAlignment) {
  layout_a_ = layout(4, 4, 4);
  layout_d_ = layout(4, 3, 4);
  const auto offered = [&] {
    int count = 0;
    for (const auto& r : heuristics()) count += r.state == CUBLAS_STATUS_SUCCESS;
    return count;
  };
  const int all = offered();
  const auto vectors = heuristics()[1].algo;
  EXPECT_EQ(run(vectors, a_.data() + 1, workspace_.data(), 64), CUBLAS_STATUS_INVALID_VALUE);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, std::uint32_t{4});
  EXPECT_EQ(offered(), all - 1);
  layout_a_ = layout(4, 4, 5);
  EXPECT_EQ(run(vectors, a_.data(), workspace_.data(), 64), CUBLAS_STATUS_NOT_SUPPORTED);
}

TEST_F(EmulatedCublasLt, TypesThatDoNotGoTogether) {
  layout_d_ = layout(2, 3, 2, CUDA_R_16BF);
  EXPECT_EQ(run(), CUBLAS_STATUS_NOT_SUPPORTED);
}

TEST_F(EmulatedCublasLt, EpiloguesThatCannotBe) {
  const auto epilogue = static_cast<std::uint32_t>(CUBLASLT_EPILOGUE_BIAS);
  const auto set_bias = [&](const void* bias) {
    (void)cublasLtMatmulDescSetAttribute(operation_, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof bias);
  };
  (void)cublasLtMatmulDescSetAttribute(operation_, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue);
  EXPECT_EQ(run(), CUBLAS_STATUS_NOT_SUPPORTED) << "no bias";
  set_bias(a_.data() + 1);
  EXPECT_EQ(run(), CUBLAS_STATUS_NOT_SUPPORTED) << "a misaligned one";
  set_bias(a_.data());
  EXPECT_EQ(run(), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(d_.read(stream_)[1], 4) << "bias[row] = 2 is added to 2";
}

TEST_F(EmulatedCublasLt, ShapesThatDoNotMatch) {
  layout_b_ = layout(5, 3, 5);
  EXPECT_EQ(run(), CUBLAS_STATUS_INVALID_VALUE);
  layout_b_ = layout(4, 3, 3);
  EXPECT_EQ(run(), CUBLAS_STATUS_INVALID_VALUE) << "columns that overlap";
  layout_b_ = layout(4, 3, 4);
  const std::int32_t batch = 2;
  (void)cublasLtMatrixLayoutSetAttribute(layout_b_, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batch, sizeof batch);
  EXPECT_EQ(run(), CUBLAS_STATUS_INVALID_VALUE) << "batches that differ";
}

TEST_F(EmulatedCublasLt, HandlesAndAttributesThatAreNone) {
  const std::int32_t batch = 2;
  EXPECT_EQ(cublasLtMatrixLayoutSetAttribute(layout_b_, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batch, 8),
            CUBLAS_STATUS_INVALID_VALUE);
  const auto algo = heuristics()[0].algo;
  EXPECT_EQ(run({}, a_.data(), workspace_.data(), 64), CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(cublasLtDestroy(handle_), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(run(algo, a_.data(), workspace_.data(), 64), CUBLAS_STATUS_NOT_INITIALIZED);
}

TEST_F(EmulatedCublasLt, AnOperandBeyondItsMemoryEndsTheDevice) {
  layout_a_ = layout(2, 4, 1000);
  ASSERT_EQ(run(), CUBLAS_STATUS_SUCCESS) << "found when it runs";
  EXPECT_EQ(cudaStreamSynchronize(stream_), cudaErrorIllegalAddress);
  EXPECT_NE(emulated::report().find("cublasLtMatmul"), std::string::npos) << emulated::report();
}

}  // namespace

}  // namespace sherd::cuda
