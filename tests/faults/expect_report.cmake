# Runs PROGRAM, which has a seeded fault, and fails unless the sanitizer both prints REPORT and makes the program fail.
execute_process(COMMAND ${PROGRAM} RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
if(NOT output MATCHES "${REPORT}")
  message(FATAL_ERROR "${PROGRAM}: no report \"${REPORT}\"; exit status ${status}, output:\n${output}")
elseif(status STREQUAL "0")
  message(FATAL_ERROR "${PROGRAM}: reported, but the exit status is 0, so a test run would pass:\n${output}")
endif()
message(STATUS "caught: ${REPORT}, exit status ${status}")
