# Build options and the flags every target of ours is compiled with.
set(SHERD_ONEDNN AUTO CACHE STRING "Build libsherd_onednn.so: AUTO (if oneDNN is found), ON, OFF; the own kernel is always built")
set_property(CACHE SHERD_ONEDNN PROPERTY STRINGS AUTO ON OFF)
set(SHERD_SANITIZE "" CACHE STRING "Sanitizers, as -fsanitize= takes them: address,undefined or thread")

set(SHERD_LAYERS all CACHE STRING "What is built: all, or runtime alone with its tests, for a sanitizer that looks at no more")
set_property(CACHE SHERD_LAYERS PROPERTY STRINGS all runtime)

option(SHERD_UNITY "Compile sources of a folder sixteen at a time: a cold build is faster, one after a change is not" ON)

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
set(CMAKE_BUILD_RPATH_USE_ORIGIN ON)

find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # pch_defines,time_macros: ccache must be told that a precompiled header is safe to look through.
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime ${CCACHE_PROGRAM})
endif()

# Contraction is off everywhere: a*b+c rounds twice unless the code says fma, so eager, captured and
# generated code agree bit for bit.
# (nvcc has flags of its own: cmake/cuda.cmake.)
add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:-ffp-contract=off;-fno-math-errno;-fno-trapping-math>")
if(SHERD_SANITIZE)
  add_compile_options(-fsanitize=${SHERD_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=undefined)
  add_link_options(-fsanitize=${SHERD_SANITIZE})
  if(SHERD_SANITIZE MATCHES "address.*undefined")
    # A third of the compile time: the address sanitizer stops at null and outside of objects too.
    add_compile_options(-fno-sanitize=null,vptr,pointer-overflow,object-size,nonnull-attribute,returns-nonnull-attribute)
  endif()
  add_compile_options(-Wno-maybe-uninitialized)  # instrumented std::regex looks uninitialized to g++ 12
endif()
if(SHERD_SANITIZE MATCHES "thread")
  add_compile_options(-Wno-tsan)  # Asio uses atomic fences, which g++ warns that TSan cannot see.
  add_compile_definitions(SHERD_PLAIN_POOL=1)  # TSan cannot see into libtbb: runtime/cpu/parallel.h runs on plain threads.
endif()

add_library(sherd_warnings INTERFACE)
target_compile_options(sherd_warnings INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wshadow;-Wconversion>")
if(NOT SHERD_SANITIZE)  # g++ takes the code that sanitizers put in for the program's, and warns of what cannot happen
  target_compile_options(sherd_warnings INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:-Werror>")
endif()
# g++ 12 reports copies inside std::string that cannot happen (GCC bugs 105651, 105329), at -O2 only.
target_compile_options(sherd_warnings INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:-Wno-restrict;-Wno-stringop-overflow>")
