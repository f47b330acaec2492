# CUDA: found or not, and the flags of kernel files. runtime/cuda is built with it; no other folder knows it.
set(SHERD_CUDA AUTO CACHE STRING "Build the CUDA backend: AUTO (if nvcc is found), ON, OFF")
set_property(CACHE SHERD_CUDA PROPERTY STRINGS AUTO ON OFF)
set(SHERD_CUDA_ARCHITECTURES "90a-real" CACHE STRING "What nvcc compiles for, as CMAKE_CUDA_ARCHITECTURES takes it")

set(SHERD_CUDA_WHY "")
if(SHERD_CUDA STREQUAL "OFF")
  set(SHERD_CUDA_WHY "SHERD_CUDA is OFF")
elseif(SHERD_SANITIZE)
  set(SHERD_CUDA_WHY "sanitizers do not know device code")
else()
  set(CMAKE_CUDA_ARCHITECTURES ${SHERD_CUDA_ARCHITECTURES})
  include(CheckLanguage)
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    find_package(CUDAToolkit 12.3)
  endif()
  if(NOT CMAKE_CUDA_COMPILER)
    set(SHERD_CUDA_WHY "no nvcc that works with the C++ compiler was found")
  elseif(NOT CUDAToolkit_FOUND)
    set(SHERD_CUDA_WHY "nvcc was found, but no CUDA toolkit of version 12.3 or later")
  elseif(NOT TARGET CUDA::cublasLt)
    set(SHERD_CUDA_WHY "the CUDA toolkit has no cuBLASLt")
  endif()
endif()
if(SHERD_CUDA_WHY)
  set(SHERD_HAS_CUDA OFF)
  message(STATUS "CUDA backend: not built (${SHERD_CUDA_WHY})")
  if(SHERD_CUDA STREQUAL "ON")
    message(FATAL_ERROR "SHERD_CUDA is ON, but the CUDA backend cannot be built: ${SHERD_CUDA_WHY}")
  endif()
  return()
endif()
set(SHERD_HAS_CUDA ON)
message(STATUS "CUDA backend: ${CMAKE_CUDA_COMPILER} ${CUDAToolkit_VERSION} for ${SHERD_CUDA_ARCHITECTURES}")

# cuDNN is opened at run time; its headers decide which of the files cudnn_*.cpp are built (sherd_cuda_sources).
find_path(CUDNN_INCLUDE_DIR cudnn_backend.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
if(CUDNN_INCLUDE_DIR)
  message(STATUS "cuDNN: headers in ${CUDNN_INCLUDE_DIR}")
else()
  message(STATUS "cuDNN: no headers found, attention is computed by own kernels (set CUDNN_INCLUDE_DIR to their folder)")
endif()

# sherd_cuda_sources(variable): the files of runtime/cuda that are built here.
function(sherd_cuda_sources variable)
  file(GLOB_RECURSE files CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/runtime/cuda/*.cpp ${CMAKE_SOURCE_DIR}/runtime/cuda/*.cu)
  if(CUDNN_INCLUDE_DIR)
    list(FILTER files EXCLUDE REGEX "/cudnn_absent\\.cpp$")
  else()
    list(FILTER files EXCLUDE REGEX "/cudnn_(api|graph|attention|attention_graph)\\.cpp$")
  endif()
  set(${variable} ${files} PARENT_SCOPE)
endfunction()

# The launcher keeps what ptxas says of registers, spills and shared memory beside each object; a test reads it.
set(CMAKE_CUDA_COMPILER_LAUNCHER ${CMAKE_SOURCE_DIR}/cmake/keep_ptxas_report.sh ${CMAKE_CXX_COMPILER_LAUNCHER})
set(CMAKE_CUDA_RUNTIME_LIBRARY Static)

# CMake 3.25 does not know nvcc's flag for C++20.
set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)

# Flags of every .cu file. -fmad=false: contraction is off in device code as everywhere else; kernels say fma.
add_library(sherd_cuda_flags INTERFACE)
target_compile_options(sherd_cuda_flags INTERFACE "$<$<COMPILE_LANGUAGE:CUDA>:-fmad=false;--expt-relaxed-constexpr;\
-Werror=all-warnings;-Xptxas=-v;-Xcompiler=-Wall,-Wextra,-Werror,-ffp-contract=off>")
# Under nvcc {fmt} 9 would drop half of its constexpr, and then not compile.
target_compile_definitions(sherd_cuda_flags INTERFACE $<$<COMPILE_LANGUAGE:CUDA>:FMT_USE_CONSTEXPR=1>)
target_include_directories(sherd_cuda_flags SYSTEM INTERFACE ${CUDAToolkit_INCLUDE_DIRS}
                           $<$<BOOL:${CUDNN_INCLUDE_DIR}>:${CUDNN_INCLUDE_DIR}>)
