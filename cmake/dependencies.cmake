# Every dependency and, in one line, why it is here.
find_package(Threads REQUIRED)
find_package(fmt 9 REQUIRED)                 # text formatting: g++ 12 has no std::format
find_package(TBB 2021 REQUIRED)              # parallel loops inside CPU kernels
find_package(Boost 1.74 REQUIRED)            # Asio: sockets with deadlines for the rendezvous store
find_package(nlohmann_json 3.11 REQUIRED)    # manifests, safetensors headers, metrics
find_package(tomlplusplus 3.3 REQUIRED)      # config files; header-only, so that its assertions become Errors
find_path(XXHASH_INCLUDE_DIR xxhash.h REQUIRED)  # checksums of checkpoints and data; compiled in, so no library is needed
if(BUILD_TESTING OR NOT DEFINED BUILD_TESTING)
  find_package(GTest 1.12 REQUIRED)          # tests
  find_package(Python3 REQUIRED COMPONENTS Interpreter)  # tools/check_layers.py
endif()

# oneDNN: bf16 products on CPUs with AMX, and a second opinion on the others in tests and benchmarks. Its CMake package
# needs OpenCL headers, so it is found by hand; its CPU runtime is OpenMP, kept at one thread.
set(SHERD_HAS_ONEDNN OFF)
if(SHERD_ONEDNN)
  find_path(DNNL_INCLUDE_DIR dnnl.hpp)
  find_library(DNNL_LIBRARY dnnl)
  find_package(OpenMP COMPONENTS CXX)
  if(DNNL_INCLUDE_DIR AND DNNL_LIBRARY AND OpenMP_CXX_FOUND)
    set(SHERD_HAS_ONEDNN ON)
    add_library(onednn INTERFACE)
    target_include_directories(onednn SYSTEM INTERFACE ${DNNL_INCLUDE_DIR})
    target_link_libraries(onednn INTERFACE ${DNNL_LIBRARY} OpenMP::OpenMP_CXX)
  elseif(SHERD_ONEDNN STREQUAL "AUTO")
    message(STATUS "oneDNN: not found (Debian: libdnnl-dev), bf16 products on CPUs with AMX run on the own kernel")
  else()
    message(FATAL_ERROR "SHERD_ONEDNN is ON, but oneDNN was not found: install libdnnl-dev, or configure with -DSHERD_ONEDNN=OFF")
  endif()
endif()
