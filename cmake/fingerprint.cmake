# sherd_header_hash(target): its files may include <sherd_header_hash.h>, by which the two libraries know each other
# (runtime/op/core/layout_fingerprint.h).
set(SHERD_GENERATED ${CMAKE_BINARY_DIR}/generated)
file(GLOB_RECURSE headers CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/runtime/*.h)
add_custom_command(
  OUTPUT ${CMAKE_BINARY_DIR}/header_hash.stamp
  BYPRODUCTS ${SHERD_GENERATED}/sherd_header_hash.h
  COMMAND ${CMAKE_COMMAND} -DROOT=${CMAKE_SOURCE_DIR} -DOUT=${SHERD_GENERATED}/sherd_header_hash.h
          -P ${CMAKE_SOURCE_DIR}/cmake/header_hash.cmake
  COMMAND ${CMAKE_COMMAND} -E touch ${CMAKE_BINARY_DIR}/header_hash.stamp
  DEPENDS ${headers} ${CMAKE_SOURCE_DIR}/cmake/header_hash.cmake VERBATIM)
add_custom_target(header_hash DEPENDS ${CMAKE_BINARY_DIR}/header_hash.stamp)

function(sherd_header_hash target)
  target_include_directories(${target} PRIVATE ${SHERD_GENERATED})
  add_dependencies(${target} header_hash)
endfunction()
