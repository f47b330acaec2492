# cmake --install: the program, the libraries with their headers, and the package `sherd` with the targets sherd::sherd
# and sherd::train.
#
#   lib/libsherd.so         include/sherd/sherd.h                             bin/sherd   share/sherd/configs/
#   bin/sherd-bench (where it was built)                include/sherd/{tensor,nn,parallel,compile,checkpoint,train}.h
#   lib/libsherd_train.so   include/sherd/..., what these reach               lib/cmake/sherd/
#   lib/libsherd_onednn.so (where oneDNN was found)   lib/libsherd_cuda.so (where nvcc was found)
#
# Targets bring include/ alone: headers name each other as <sherd/...> there (install_headers.cmake).
# The tree can be moved: libraries and program find each other by $ORIGIN. What the libraries themselves need (Boost,
# json, toml++) is compiled into them; a user's build needs only what headers name, oneTBB and fmt. The target
# `programs` builds all of this, and the examples.
include(CMakePackageConfigHelpers)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/sherd)

set_target_properties(sherd_lib sherd_train PROPERTIES INSTALL_RPATH "$ORIGIN")
file(RELATIVE_PATH library_from_program ${CMAKE_INSTALL_FULL_BINDIR} ${CMAKE_INSTALL_FULL_LIBDIR})
set_target_properties(sherd sherd-bench PROPERTIES INSTALL_RPATH "$ORIGIN/${library_from_program}")

set(opened "")  # libraries that libsherd.so opens from beside itself
foreach(library onednn cuda)
  if(TARGET sherd_${library})
    list(APPEND opened sherd_${library})
  endif()
endforeach()
add_custom_target(programs DEPENDS sherd sherd_lib sherd_train ${opened} ${SHERD_EXAMPLES})

install(TARGETS sherd_lib sherd_train EXPORT sherd-targets
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(CODE "set(root \"${CMAKE_SOURCE_DIR}\")\nset(folder \"${CMAKE_INSTALL_INCLUDEDIR}\")")
install(SCRIPT cmake/install_headers.cmake)
install(TARGETS sherd ${opened}
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(TARGETS sherd-bench RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} OPTIONAL)
install(EXPORT sherd-targets NAMESPACE sherd:: DESTINATION ${package_dir})

configure_package_config_file(cmake/sherd-config.cmake.in ${CMAKE_BINARY_DIR}/sherd-config.cmake
  INSTALL_DESTINATION ${package_dir})
# Before 1.0 a minor version may change the interface.
write_basic_package_version_file(${CMAKE_BINARY_DIR}/sherd-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/sherd-config.cmake ${CMAKE_BINARY_DIR}/sherd-config-version.cmake
  DESTINATION ${package_dir})

install(FILES LICENSE README.md DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(DIRECTORY tools/configs DESTINATION ${CMAKE_INSTALL_DATADIR}/sherd FILES_MATCHING PATTERN "*.toml")
