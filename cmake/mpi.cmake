# MPI's collectives are a peer of `sherd bench shm`, where MPI is installed. Its compiler wrapper is asked, and compiles
# the peer: find_package(MPI) ends the configure where the wrapper names folders that are not there, as Open MPI's does
# without its headers. Sets SHERD_MPICXX to a wrapper that works, or to nothing.
find_program(SHERD_MPICXX NAMES mpicxx mpic++ NO_CACHE)
if(SHERD_MPICXX)
  set(probe ${CMAKE_BINARY_DIR}/CMakeFiles/mpi_probe)
  file(WRITE ${probe}.cpp "#include <mpi.h>\nint main() { return MPI_Init(nullptr, nullptr); }\n")
  execute_process(COMMAND ${SHERD_MPICXX} ${probe}.cpp -o ${probe} RESULT_VARIABLE status OUTPUT_QUIET ERROR_VARIABLE why)
  if(status EQUAL 0)
    message(STATUS "MPI: ${SHERD_MPICXX}")
  else()
    string(REGEX MATCH "[^\n]*error[^\n]*" why "${why}")
    message(STATUS "MPI: ${SHERD_MPICXX} cannot compile and link a program, so sherd bench has no MPI peer (${why})")
    set(SHERD_MPICXX "")
  endif()
endif()

# sherd_mpi_program(name source): a program that the wrapper compiles, in one step.
function(sherd_mpi_program name source)
  set(program ${CMAKE_RUNTIME_OUTPUT_DIRECTORY}/${name})
  add_custom_command(OUTPUT ${program} COMMAND ${SHERD_MPICXX} -std=c++20 -O2 ${source} -o ${program} DEPENDS ${source}
                     COMMENT "Compiling ${name} by ${SHERD_MPICXX}" VERBATIM)
  add_custom_target(${name} DEPENDS ${program})
endfunction()
