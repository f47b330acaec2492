# The kernels of runtime/cpu are compiled once per instruction-set level, from the same plain sources. The objects of a
# level are linked into one, in which every symbol but the entry point is local: inline and template code that was
# compiled for one level (the standard library's included) can never be picked by the linker for another, or for code
# that runs on any CPU. runtime/os/instruction_level.cpp chooses at start.
set(SHERD_CPU_LEVELS "v3;v4;v4_bf16" CACHE STRING "Instruction-set levels of the CPU kernels: v3, v4, v4_bf16")

set(SHERD_CPU_FLAGS_v3 -march=x86-64-v3)
set(SHERD_CPU_FLAGS_v4 -march=x86-64-v4 -mprefer-vector-width=512)
set(SHERD_CPU_FLAGS_v4_bf16 ${SHERD_CPU_FLAGS_v4} -mavx512bf16)

# sherd_cpu_levels(sources...): adds one object per level to the library. Called where the library is made, because a
# generated file belongs to its folder.
function(sherd_cpu_levels)
  foreach(level ${SHERD_CPU_LEVELS})
    if(NOT DEFINED SHERD_CPU_FLAGS_${level})
      message(FATAL_ERROR "SHERD_CPU_LEVELS names ${level}; the levels are v3, v4 and v4_bf16")
    endif()
    add_library(sherd_cpu_${level} OBJECT ${ARGN})
    target_include_directories(sherd_cpu_${level} PRIVATE ${CMAKE_SOURCE_DIR})
    target_link_libraries(sherd_cpu_${level} PRIVATE fmt::fmt sherd_warnings)
    target_compile_options(sherd_cpu_${level} PRIVATE ${SHERD_CPU_FLAGS_${level}} $<$<CONFIG:Release>:-O3>)
    target_precompile_headers(sherd_cpu_${level} PRIVATE ${CMAKE_SOURCE_DIR}/cmake/pch.h
                              ${CMAKE_SOURCE_DIR}/runtime/cpu/kernels.h ${CMAKE_SOURCE_DIR}/runtime/cpu/tile.h)

    set(object ${CMAKE_CURRENT_BINARY_DIR}/cpu_${level}.o)
    set(entry sherd_cpu_kernels_${level})
    add_custom_command(
      OUTPUT ${object}
      # The precompiled header counts among the objects.
      COMMAND ${CMAKE_LINKER} -r --force-group-allocation -o ${object}
              $<FILTER:$<TARGET_OBJECTS:sherd_cpu_${level}>,INCLUDE,o$>
      COMMAND ${CMAKE_OBJCOPY} --redefine-sym sherd_cpu_kernels=${entry} ${object}
      COMMAND ${CMAKE_OBJCOPY} --keep-global-symbol=${entry} ${object}
      DEPENDS $<TARGET_OBJECTS:sherd_cpu_${level}>
      COMMENT "Linking CPU kernels of level ${level}"
      COMMAND_EXPAND_LISTS VERBATIM)
    target_sources(sherd_lib PRIVATE ${object})
    list(APPEND objects ${object})
  endforeach()
  set_property(GLOBAL PROPERTY SHERD_CPU_OBJECTS ${objects})  # for the test that looks into them
endfunction()
