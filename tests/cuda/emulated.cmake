# The CUDA backend's sources once more, compiled by the C++ compiler and run by an emulated GPU: support/emulated_gpu
# defines the functions of the CUDA runtime library that the sources call, and the threads of device.h.
file(GLOB emulator CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/support/emulated_gpu/*.cpp)
sherd_cuda_sources(backend)
file(GLOB test_sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/cuda/*.cpp)
file(GLOB test_kernels CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/cuda/*.cu)
file(GLOB emulator_test_kernels CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/cuda/emulated_gpu/*.cu)
set_source_files_properties(${backend} ${test_kernels} ${emulator_test_kernels} PROPERTIES LANGUAGE CXX)
# std::fma in one instruction, as on a GPU; the lowest level of the CPU kernels has it too.
set_source_files_properties(${test_kernels} ${emulator_test_kernels} PROPERTIES
  COMPILE_OPTIONS -march=x86-64-v3 SKIP_PRECOMPILE_HEADERS ON)

add_library(sherd_cuda_emulated SHARED ${emulator} ${backend})
set(host_sources ${emulator} ${backend})
list(FILTER host_sources INCLUDE REGEX "\\.cpp$")
sherd_compile_together(sherd_cuda_emulated ${host_sources})
# `#pragma unroll` is nvcc's.
target_compile_options(sherd_cuda_emulated PRIVATE -march=x86-64-v3 -Wno-unknown-pragmas)
target_link_options(sherd_cuda_emulated PRIVATE -Wl,-Bsymbolic-functions)
target_link_libraries(sherd_cuda_emulated PUBLIC sherd_lib PRIVATE sherd_warnings)
sherd_header_hash(sherd_cuda_emulated)
target_include_directories(sherd_cuda_emulated SYSTEM PUBLIC ${CUDAToolkit_INCLUDE_DIRS}
                           $<$<BOOL:${CUDNN_INCLUDE_DIR}>:${CUDNN_INCLUDE_DIR}>)
set_target_properties(sherd_cuda_emulated PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib/emulated)

# Beside it, where it looks first: cuDNN on the emulated GPU.
if(CUDNN_INCLUDE_DIR)
  file(GLOB emulated_cudnn CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/support/emulated_cudnn/*.cpp)
  add_library(emulated_cudnn SHARED ${emulated_cudnn})
  set_target_properties(emulated_cudnn PROPERTIES OUTPUT_NAME cudnn SOVERSION 9
                        LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib/emulated)
  target_link_libraries(emulated_cudnn PRIVATE sherd_cuda_emulated sherd_warnings)
endif()

# NCCL there too.
file(GLOB emulated_nccl CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/support/emulated_nccl/*.cpp)
add_library(emulated_nccl SHARED ${emulated_nccl})
set_target_properties(emulated_nccl PROPERTIES OUTPUT_NAME nccl SOVERSION 2
                      LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib/emulated)
target_link_libraries(emulated_nccl PRIVATE sherd_cuda_emulated sherd_warnings)
target_include_directories(emulated_nccl SYSTEM PUBLIC ${CUDAToolkit_INCLUDE_DIRS})

# Tests that run on the emulated GPU and on a real one (test_cuda_device) differ in their kernels only.
set(emulated_test_sources ${test_sources})
list(FILTER emulated_test_sources INCLUDE REGEX "/emulated_[^/]*$")  # tests of the emulated GPU itself
list(REMOVE_ITEM test_sources ${emulated_test_sources})
# Groups of devices run the table of tests/comm too.
list(APPEND test_sources ${CMAKE_CURRENT_SOURCE_DIR}/comm/conformance/cases.cpp
     ${CMAKE_CURRENT_SOURCE_DIR}/comm/conformance/check_case.cpp)
add_library(test_cuda_objects OBJECT ${test_sources})
sherd_compile_together(test_cuda_objects ${test_sources})
target_link_libraries(test_cuda_objects PUBLIC sherd_test_support)
target_include_directories(test_cuda_objects SYSTEM PUBLIC ${CUDAToolkit_INCLUDE_DIRS}
                           $<$<BOOL:${CUDNN_INCLUDE_DIR}>:${CUDNN_INCLUDE_DIR}>)
set_target_properties(test_cuda_objects PROPERTIES POSITION_INDEPENDENT_CODE OFF)  # as sherd_test_support is compiled
target_compile_options(test_cuda_objects PRIVATE -fPIE)

add_executable(test_cuda ${emulated_test_sources} ${test_kernels})
sherd_compile_together(test_cuda ${emulated_test_sources})
set_source_files_properties(cuda/emulated_library.cpp PROPERTIES
  COMPILE_DEFINITIONS SHERD_EMULATED_LIBRARY="$<TARGET_FILE:sherd_cuda_emulated>")
target_link_libraries(test_cuda PRIVATE test_cuda_objects sherd_cuda_emulated)
add_dependencies(test_cuda emulated_nccl)  # LibraryGroups

# The emulated GPU itself.
file(GLOB emulator_tests CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/cuda/emulated_gpu/*.cpp)
add_executable(test_emulated_gpu ${emulator_tests} ${emulator_test_kernels} cuda/device_kernels.cu)
sherd_compile_together(test_emulated_gpu ${emulator_tests})
target_link_libraries(test_emulated_gpu PRIVATE sherd_test_support sherd_cuda_emulated)

# Whole training runs, in the test's process and as the program.
file(GLOB training_tests CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/cuda/training/*.cpp)
add_executable(test_cuda_training ${training_tests} cuda/emulated_library.cpp)
target_compile_definitions(test_cuda_training PRIVATE SHERD_PROGRAM="$<TARGET_FILE:sherd>"
  SHERD_CORE_LIBRARY="$<TARGET_FILE:sherd_lib>"
  SHERD_EMULATED_LIBRARY="$<TARGET_FILE:sherd_cuda_emulated>")
target_link_libraries(test_cuda_training PRIVATE sherd_test_support sherd_tools sherd_cuda_emulated)
add_dependencies(test_cuda_training sherd sherd-bench emulated_nccl)

# The emulated NCCL, over the functions that the backend binds.
file(GLOB nccl_tests CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/cuda/nccl/emulated_*.cpp)
# The table and the faults of tests/comm run on its groups too.
set(conformance comm/backends.cpp comm/conformance/cases.cpp comm/conformance/check_case.cpp comm/conformance/engines.cpp
    comm/conformance/faults.cpp)
add_executable(test_nccl ${nccl_tests} ${conformance} cuda/nccl/fake_ranks.cpp cuda/nccl/nccl_engine.cpp
               cuda/emulated_library.cpp)
sherd_compile_together(test_nccl ${nccl_tests})
target_link_libraries(test_nccl PRIVATE sherd_test_support emulated_nccl sherd_cuda_emulated)

foreach(program test_cuda_objects test_cuda test_emulated_gpu test_cuda_training test_nccl)
  target_precompile_headers(${program} REUSE_FROM sherd_test_support)
endforeach()
foreach(program test_cuda test_emulated_gpu test_cuda_training test_nccl)
  if(TARGET emulated_cudnn)
    add_dependencies(${program} emulated_cudnn)
  endif()
  gtest_discover_tests(${program} TEST_PREFIX emulated. DISCOVERY_TIMEOUT 60 PROPERTIES TIMEOUT 300 LABELS unit
                       ENVIRONMENT SHERD_CHECK_PROGRAMS=1)  # as in sherd_test()
  sherd_label(unit ${program})
endforeach()

# Ranks of two hosts, which are network namespaces; skipped by name where none can be made.
add_test(NAME emulated.two_hosts COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/cuda/hosts_test.py
         $<TARGET_FILE:sherd> $<TARGET_FILE:sherd_cuda_emulated>)
set_tests_properties(emulated.two_hosts PROPERTIES LABELS "hosts;program" SKIP_RETURN_CODE 77 TIMEOUT 300)

# Other orders of everything that may happen in any order.
foreach(seed 2 3)
  add_test(NAME emulated.seed_${seed} COMMAND test_cuda)
  set_tests_properties(emulated.seed_${seed} PROPERTIES LABELS "slow;long" ENVIRONMENT SHERD_EMULATED_GPU_SEED=${seed} TIMEOUT 300)
endforeach()
# A seed stands for a fifth of the strategies.
foreach(seed RANGE 2 5)
  add_test(NAME emulated.strategies_seed_${seed} COMMAND test_cuda_training --gtest_filter=RanksOnCuda.F176*)
  set_tests_properties(emulated.strategies_seed_${seed} PROPERTIES LABELS "slow;long"
                       ENVIRONMENT SHERD_EMULATED_GPU_SEED=${seed} TIMEOUT 300)
endforeach()

# Each block of device memory a segment of its own: a kernel that writes beyond one is found by the byte.
# Not of staged groups: there a block is given back to the device while a stream waits for the host, which waits for it.
# Giving back waits for the device, so a lost one is noticed earlier than two tests ask.
add_test(NAME emulated.separate_memory COMMAND test_cuda --gtest_filter=-*Staged*:LostDevice.WaitsForAQueueThrow:LostDevice.HostWorkBehindAQueueFails)
set_tests_properties(emulated.separate_memory PROPERTIES LABELS "slow;long" ENVIRONMENT SHERD_DEVICE_MEMORY=separate TIMEOUT 300)

# The script that checks a GPU host, on a bundle like tools/gpu/pack's, with the emulated GPU in the place of the card.
add_executable(bench_gpu_limits_emulated ${CMAKE_SOURCE_DIR}/tools/bench/gpu_limits.cpp)
target_link_libraries(bench_gpu_limits_emulated PRIVATE sherd_cuda_emulated sherd_warnings)
if(TARGET emulated_cudnn)
  add_dependencies(bench_gpu_limits_emulated emulated_cudnn)
endif()
foreach(stage first lost)
  add_test(NAME gpu.dry_run.${stage} COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/cuda/gpu_check_test.py
           ${stage} ${CMAKE_SOURCE_DIR} ${CMAKE_BINARY_DIR})
  set_tests_properties(gpu.dry_run.${stage} PROPERTIES LABELS unit TIMEOUT 300)
endforeach()
foreach(part parts runner state tools)
  add_test(NAME gpu.check_${part} COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/cuda/gpu_check_${part}_test.py
           ${CMAKE_SOURCE_DIR})
  set_tests_properties(gpu.check_${part} PROPERTIES LABELS unit)
endforeach()
sherd_label(unit sherd)
sherd_label(unit sherd-bench)
sherd_label(unit bench_gpu_limits_emulated)
