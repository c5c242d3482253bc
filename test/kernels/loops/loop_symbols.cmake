# SPDX-License-Identifier: Apache-2.0
# [req:1.30] Checks that objects compiled for a special instruction set define no symbol that the
# linker may merge with another object's. If the linker chose their copy of a shared inline
# function, a processor without those instructions would fail far away from any loop.
#
#   cmake -DNM=nm -DARCHIVE=liboriel_kernels.a -P loop_symbols.cmake
execute_process(COMMAND ${NM} --defined-only ${ARCHIVE}
  OUTPUT_VARIABLE output RESULT_VARIABLE status ERROR_VARIABLE errors)
if(NOT status EQUAL 0)
  message(FATAL_ERROR "${NM} ${ARCHIVE}: ${errors}")
endif()
string(REPLACE "\n" ";" lines "${output}")
set(member "")
set(loops 0)
foreach(line ${lines})
  if(line MATCHES "^(.+\\.o):$")
    set(member ${CMAKE_MATCH_1})
  elseif(member MATCHES "_(baseline|avx2|avx512)\\.cpp\\.o$")
    if(line MATCHES " [uvVwW] ")
      message(FATAL_ERROR "${member} defines a symbol that may replace another's: ${line}")
    elseif(line MATCHES "kLoops|kCopyLoop")
      math(EXPR loops "${loops} + 1")
    endif()
  endif()
endforeach()
if(loops LESS 13)
  message(FATAL_ERROR "only ${loops} tables found in ${ARCHIVE}: the check has lost its object")
endif()
message(STATUS "${loops} tables of loops, no mergeable symbol beside them")
