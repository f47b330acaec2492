# sherd_layer([TARGET library] [EXCEPT files...]): adds a folder's sources to a library, libsherd.so unless another is
# named, and its headers to the set that is checked and installed. Files are found by name, so that adding an idea is
# adding a file.
function(sherd_layer)
  cmake_parse_arguments(ARG "" "TARGET" "EXCEPT" ${ARGN})
  if(NOT ARG_TARGET)
    set(ARG_TARGET sherd_lib)
  endif()
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.cpp)
  file(GLOB_RECURSE headers CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.h)
  list(REMOVE_ITEM sources ${ARG_EXCEPT})
  list(REMOVE_ITEM headers ${ARG_EXCEPT})
  target_sources(${ARG_TARGET} PRIVATE ${sources})
  target_sources(${ARG_TARGET} PUBLIC FILE_SET HEADERS BASE_DIRS ${CMAKE_SOURCE_DIR} FILES ${headers})
endfunction()

# sherd_label(label target): target is part of what `tests_<label>` builds, so that a run of one label builds no more.
function(sherd_label label target)
  if(NOT TARGET tests_${label})
    add_custom_target(tests_${label})
  endif()
  add_dependencies(tests_${label} ${target})
endfunction()

# sherd_test(folder [LABELS ...] [EXCEPT regex]): one test program from all .cpp files of a test folder.
function(sherd_test name)
  cmake_parse_arguments(ARG "" "EXCEPT" "LABELS;LIBRARIES" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${name}/*.cpp)
  if(ARG_EXCEPT)
    list(FILTER sources EXCLUDE REGEX ${ARG_EXCEPT})
  endif()
  if(NOT sources)
    return()
  endif()
  add_executable(test_${name} ${sources})
  target_link_libraries(test_${name} PRIVATE sherd_test_support ${ARG_LIBRARIES})
  target_precompile_headers(test_${name} REUSE_FROM sherd_test_support)
  gtest_discover_tests(test_${name} DISCOVERY_TIMEOUT 60 PROPERTIES TIMEOUT 300 LABELS "${ARG_LABELS}"
                       ENVIRONMENT SHERD_CHECK_PROGRAMS=1)  # each recording is written, read back and bound
  foreach(label ${ARG_LABELS})
    sherd_label(${label} test_${name})
  endforeach()
endfunction()
