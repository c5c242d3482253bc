# SPDX-License-Identifier: Apache-2.0
# Refuses a gcc that is too old for the sources, before it fails in the middle of a build.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 12)
  message(FATAL_ERROR
    "Oriel needs gcc 12 or newer, and ${CMAKE_CXX_COMPILER} is gcc ${CMAKE_CXX_COMPILER_VERSION}. "
    "Name another one by -DCMAKE_CXX_COMPILER=g++-12, in a fresh build folder.")
endif()
