# SPDX-License-Identifier: Apache-2.0
# Build options, and the compiler settings that all modules share.
include(CheckLanguage)

option(ORIEL_TESTS "Build the tests" ${PROJECT_IS_TOP_LEVEL})
option(ORIEL_TOOLS "Build oriel-perf, oriel-run and the other tools" ON)
option(ORIEL_WERROR "Treat warnings as errors (the presets turn it on)" OFF)
set(ORIEL_CUDA AUTO CACHE STRING "Build the CUDA half: AUTO (if nvcc is found), ON, OFF")
set_property(CACHE ORIEL_CUDA PROPERTY STRINGS AUTO ON OFF)
set(ORIEL_SANITIZE "" CACHE STRING "Sanitizer for the host half: address, thread")
set(ORIEL_SANITIZE_MODULES "" CACHE STRING "Further sanitizers for src/ alone: bounds, shift, ...")
# Off by default, because a file with a missing include would compile all the same. The release
# preset turns it on for tests only.
set(ORIEL_PRECOMPILE OFF CACHE STRING
  "Compile common headers once, which takes less time where nothing is cached: OFF, TESTS, ALL")
set_property(CACHE ORIEL_PRECOMPILE PROPERTY STRINGS OFF TESTS ALL)
if(ORIEL_PRECOMPILE)
  add_compile_options($<$<COMPILE_LANG_AND_ID:CXX,GNU>:-fpch-preprocess>)  # for ccache
endif()
# Off by default: a changed file would recompile its neighbours, and a file with a missing include
# would compile all the same (tools/check_includes.py finds most). A full build takes less time.
option(ORIEL_UNITY "Compile the files of a module a few together" OFF)
set(ORIEL_UNITY_FILES 40)  # one file of 28 takes a fifth less than two of 14
set(CMAKE_PCH_WARN_INVALID OFF)  # files with flags of their own do without
set(ORIEL_COMMON_HEADERS <algorithm> <array> <chrono> <functional> <map> <memory> <mutex> <optional>
  <string> <string_view> <thread> <vector> <fmt/format.h>)
list(TRANSFORM ORIEL_COMMON_HEADERS REPLACE "(.+)" "$<$<COMPILE_LANGUAGE:CXX>:\\1>")

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_C_STANDARD 99)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_CUDA_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/lib)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()

set(ORIEL_HAVE_CUDA OFF)
if(NOT ORIEL_CUDA STREQUAL "OFF")
  if(NOT CMAKE_CUDA_COMPILER AND EXISTS /usr/local/cuda/bin/nvcc)
    set(CMAKE_CUDA_COMPILER /usr/local/cuda/bin/nvcc)
  endif()
  if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES AND NOT DEFINED ENV{CUDAARCHS})
    set(CMAKE_CUDA_ARCHITECTURES 90-real)
  endif()
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    enable_language(CUDA)
    if(NOT DEFINED CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25 does not know that nvcc has it
      set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
      set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
    endif()
    set(CMAKE_CUDA_STANDARD 20)
    set(CMAKE_CUDA_STANDARD_REQUIRED ON)
    string(APPEND CMAKE_CUDA_FLAGS " --expt-relaxed-constexpr")
    find_package(CUDAToolkit REQUIRED)
    set(ORIEL_HAVE_CUDA ON)
  elseif(ORIEL_CUDA STREQUAL "ON")
    message(FATAL_ERROR "ORIEL_CUDA=ON, but there is no nvcc")
  endif()
endif()
message(STATUS "Oriel: CUDA half ${ORIEL_HAVE_CUDA}")

find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
# The shared library contains fmt. Header-only fmt in each file would take half of the build's time,
# and Debian has no archive of fmt. So fmt_definitions.cpp compiles the parts that fmt 9 has in its
# library. Later versions of fmt may need other parts, so they are used header-only.
if(fmt_VERSION VERSION_GREATER_EQUAL 9 AND fmt_VERSION VERSION_LESS 10)
  add_library(oriel_fmt STATIC ${PROJECT_SOURCE_DIR}/src/base/fmt_definitions.cpp)
  get_target_property(oriel_fmt_headers fmt::fmt INTERFACE_INCLUDE_DIRECTORIES)
  target_include_directories(oriel_fmt SYSTEM PUBLIC ${oriel_fmt_headers})
else()
  add_library(oriel_fmt INTERFACE)
  target_link_libraries(oriel_fmt INTERFACE fmt::fmt-header-only)
endif()

# Warnings and sanitizers of Oriel's own targets.
add_library(oriel_build_flags INTERFACE)
# -Wno-missing-field-initializers: fields that a designated initialiser leaves out keep their
# defaults. -Wno-restrict: gcc 12 reports overlaps in std::string that do not exist (GCC PR 105651).
set(oriel_warnings -Wall -Wextra -Wconversion -Wshadow -Wno-missing-field-initializers
  $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict>)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_GREATER_EQUAL 13)
  # gcc 13 at -O3 falsely reports copies past the end of fmt 9's big integers.
  list(APPEND oriel_warnings -Wno-array-bounds -Wno-stringop-overflow)
endif()
set(oriel_cuda_warnings -Xcompiler=-Wall,-Wextra,-Wconversion,-Wshadow
  -Xcompiler=-Wno-missing-field-initializers)
if(ORIEL_WERROR)
  list(APPEND oriel_warnings -Werror)
  list(APPEND oriel_cuda_warnings -Werror=all-warnings -Xcompiler=-Werror)
endif()
target_compile_options(oriel_build_flags INTERFACE
  "$<$<COMPILE_LANGUAGE:C,CXX>:${oriel_warnings}>"
  "$<$<COMPILE_LANGUAGE:CUDA>:${oriel_cuda_warnings}>")
if(ORIEL_SANITIZE)
  set(oriel_sanitize -fsanitize=${ORIEL_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND ORIEL_SANITIZE MATCHES "address")
    # Makes address checks by calls instead of inline code, which compiles in less time.
    list(APPEND oriel_sanitize --param=asan-instrumentation-with-call-threshold=0)
  endif()
  target_compile_options(oriel_build_flags INTERFACE
    "$<$<COMPILE_LANGUAGE:C,CXX>:${oriel_sanitize}>")
  target_link_options(oriel_build_flags INTERFACE -fsanitize=${ORIEL_SANITIZE})
  # Disables the attribute always_inline by a macro, so that gcc decides which device functions to
  # inline. Inlined everywhere, they take more time to compile than all their callers. The loops
  # undefine the macro, because the copies for several instruction sets may share no function.
  add_compile_definitions($<$<COMPILE_LANGUAGE:CXX>:always_inline=unused>)
endif()
if(ORIEL_SANITIZE)  # programs that are large, of which there are many; lld takes the least time
  include(CheckLinkerFlag)
  check_linker_flag(CXX -fuse-ld=lld ORIEL_HAVE_LLD)
  check_linker_flag(CXX -fuse-ld=gold ORIEL_HAVE_GOLD)
  if(ORIEL_HAVE_LLD)
    target_link_options(oriel_build_flags INTERFACE -fuse-ld=lld)
  elseif(ORIEL_HAVE_GOLD)
    target_link_options(oriel_build_flags INTERFACE -fuse-ld=gold)
  endif()
endif()
if(ORIEL_SANITIZE_MODULES)
  target_link_options(oriel_build_flags INTERFACE -fsanitize=${ORIEL_SANITIZE_MODULES})
endif()
target_compile_definitions(oriel_build_flags INTERFACE
  _GNU_SOURCE ORIEL_HAVE_CUDA=$<BOOL:${ORIEL_HAVE_CUDA}>)
