# cmake --install: the program, the library with its headers, and the package `sherd` with the target sherd::sherd.
#
#   bin/sherd   lib/libsherd.so   lib/libsherd_cuda.so (where nvcc was found)   include/sherd/{runtime,dtensor,compile,nn}/   lib/cmake/sherd/   share/sherd/configs/
#
# The tree can be moved: library and program find each other by $ORIGIN. What the library itself needs (oneDNN, Boost,
# json) is linked into it or found by the loader; a user's build needs only what headers name, oneTBB and fmt.
include(CMakePackageConfigHelpers)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/sherd)

set_target_properties(sherd_lib PROPERTIES INSTALL_RPATH "$ORIGIN")
file(RELATIVE_PATH library_from_program ${CMAKE_INSTALL_FULL_BINDIR} ${CMAKE_INSTALL_FULL_LIBDIR})
set_target_properties(sherd PROPERTIES INSTALL_RPATH "$ORIGIN/${library_from_program}")

install(TARGETS sherd_lib EXPORT sherd-targets
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
  FILE_SET HEADERS DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/sherd)
if(SHERD_HAS_CUDA)  # loaded from beside libsherd.so
  install(TARGETS sherd_cuda LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
endif()
if(SHERD_HAS_ONEDNN)
  install(TARGETS sherd_onednn LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
endif()
install(TARGETS sherd RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(EXPORT sherd-targets NAMESPACE sherd:: DESTINATION ${package_dir})

configure_package_config_file(cmake/sherd-config.cmake.in ${CMAKE_BINARY_DIR}/sherd-config.cmake
  INSTALL_DESTINATION ${package_dir})
# Before 1.0 a minor version may change the interface.
write_basic_package_version_file(${CMAKE_BINARY_DIR}/sherd-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/sherd-config.cmake ${CMAKE_BINARY_DIR}/sherd-config-version.cmake
  DESTINATION ${package_dir})

install(FILES LICENSE README.md DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(DIRECTORY tools/configs DESTINATION ${CMAKE_INSTALL_DATADIR}/sherd FILES_MATCHING PATTERN "*.toml")
