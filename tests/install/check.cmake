# Installs a build into an empty folder, builds the outside project against it, and runs its programs, those too that
# README.md and docs/ show whole. With HEADERS=ON also every installed header in one file, in two orders.
#   cmake -DBUILD=build/release -DWORK=folder [-DCXX_FLAGS=...] [-DHEADERS=ON] -P tests/install/check.cmake
function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE status OUTPUT_VARIABLE out ERROR_VARIABLE out)
  if(status)
    message(FATAL_ERROR "${ARGN}\nended with ${status}:\n${out}")
  endif()
  set(out "${out}" PARENT_SCOPE)
endfunction()

file(REMOVE_RECURSE ${WORK})
run(${CMAKE_COMMAND} --install ${BUILD} --prefix ${WORK}/first)
file(RENAME ${WORK}/first ${WORK}/installed)  # an installation may be moved

# Every header that an installed header names is installed too, and none needs a library that a user does not have.
file(GLOB_RECURSE headers RELATIVE ${WORK}/installed/include/sherd ${WORK}/installed/include/sherd/*.h)
list(LENGTH headers count)
if(count LESS 50)
  message(FATAL_ERROR "only ${count} headers are installed")
endif()
foreach(header ${headers})
  file(STRINGS ${WORK}/installed/include/sherd/${header} includes REGEX "^ *#include")
  foreach(line ${includes})
    if(line MATCHES "<(boost|nlohmann|toml\\+\\+|dnnl)")
      message(FATAL_ERROR "installed header ${header} needs a private dependency: ${line}")
    elseif(line MATCHES "\"(.*)\"" AND NOT EXISTS ${WORK}/installed/include/sherd/${CMAKE_MATCH_1})
      message(FATAL_ERROR "installed header ${header} includes ${CMAKE_MATCH_1}, which is not installed")
    endif()
  endforeach()
endforeach()

# Any two headers compile together, whichever comes first.
set(orders)
if(HEADERS)
  set(orders ${WORK}/headers)
  foreach(order sorted reversed)
    list(TRANSFORM headers REPLACE "(.+)" "#include <sherd/\\1>\n" OUTPUT_VARIABLE lines)
    file(WRITE ${orders}/${order}.cpp ${lines})
    list(REVERSE headers)
  endforeach()
endif()

find_program(python python3 REQUIRED)
run(${python} ${CMAKE_CURRENT_LIST_DIR}/paste.py ${CMAKE_CURRENT_LIST_DIR}/../.. ${WORK}/pasted)
string(STRIP "${out}" pasted)
run(${CMAKE_COMMAND} -S ${CMAKE_CURRENT_LIST_DIR} -B ${WORK}/build -DCMAKE_PREFIX_PATH=${WORK}/installed
    "-DCMAKE_CXX_FLAGS=${CXX_FLAGS}" -DPASTED=${WORK}/pasted -DHEADERS=${orders})
run(${CMAKE_COMMAND} --build ${WORK}/build --parallel 2)
foreach(program outside outside_training ${pasted})
  run(${CMAKE_COMMAND} -E env --unset=LD_LIBRARY_PATH ${WORK}/build/${program} ${WORK}/${program}.files)
  message(STATUS "${program}: ${out}")
endforeach()
run(${CMAKE_COMMAND} -E env --unset=LD_LIBRARY_PATH ${WORK}/installed/bin/sherd --version)
message(STATUS "installed program: ${out}")

# An OpenMP library would bind the main thread of every program where the environment has OMP_PROC_BIND: it comes with
# oneDNN, in a library of its own that is found beside libsherd.so.
file(GLOB_RECURSE library ${WORK}/installed/libsherd.so)
run(ldd ${library})
if(out MATCHES "libgomp|libdnnl")
  message(FATAL_ERROR "libsherd.so loads an OpenMP library: ${out}")
endif()
run(${CMAKE_COMMAND} -E env --unset=LD_LIBRARY_PATH --unset=SHERD_CUDA_LIB ${WORK}/installed/bin/sherd info)
string(REGEX MATCH "matrix products  [^\n]*" products "${out}")
string(REGEX MATCH "cuda  [^\n]*" cuda "${out}")
message(STATUS "${products}; ${cuda}")
if(EXISTS ${BUILD}/lib/libsherd_onednn.so AND NOT products MATCHES "oneDNN \\(.*/installed/")
  message(FATAL_ERROR "the installed program does not find the installed libsherd_onednn.so: ${products}")
endif()

# The same of the CUDA library, if this configuration has one; without cuBLASLt it says so.
file(STRINGS ${BUILD}/CMakeCache.txt cuda_is_off REGEX "^SHERD_CUDA:[A-Z]*=OFF")
file(GLOB_RECURSE installed_cuda ${WORK}/installed/libsherd_cuda.so)
if(cuda_is_off AND installed_cuda)
  message(FATAL_ERROR "SHERD_CUDA is OFF, and ${installed_cuda} is installed")
elseif(EXISTS ${BUILD}/lib/libsherd_cuda.so AND NOT cuda_is_off)
  if(NOT installed_cuda)
    message(FATAL_ERROR "libsherd_cuda.so was built and is not installed")
  elseif(NOT cuda MATCHES "/installed/.*libsherd_cuda|libcublasLt")
    message(FATAL_ERROR "the installed program does not find ${installed_cuda}: ${cuda}")
  endif()
endif()
file(REMOVE_RECURSE ${WORK})
