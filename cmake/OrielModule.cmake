# SPDX-License-Identifier: Apache-2.0
# oriel_unite(TARGET): makes a unity build of its C++ files if ORIEL_UNITY is ON. The parts have
# nearly equal length, at most ORIEL_UNITY_FILES files. Files that have flags of their own are compiled
# apart.
function(oriel_unite target)
  if(ORIEL_UNITY)
    get_target_property(sources ${target} SOURCES)
    list(FILTER sources INCLUDE REGEX "[.]cpp$")
    list(LENGTH sources count)
    math(EXPR parts "(${count} + ${ORIEL_UNITY_FILES} - 1) / ${ORIEL_UNITY_FILES}")
    math(EXPR files "(${count} + ${parts} - 1) / ${parts}")
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE ${files})
    # gcc treats an included file as a header, where it would warn of anonymous namespaces.
    target_compile_options(${target} PRIVATE
      $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-subobject-linkage>)
  endif()
endfunction()

# oriel_add_module(NAME SOURCES ... [CUDA_SOURCES ...] [MODULES ...] [LIBRARIES ...])
#   Adds a module of src/ as the static library oriel_NAME. CUDA_SOURCES are left out without nvcc.
#   MODULES are the modules below it. LIBRARIES are further libraries to link.
function(oriel_add_module name)
  cmake_parse_arguments(arg "" "" "SOURCES;CUDA_SOURCES;MODULES;LIBRARIES" ${ARGN})
  if(ORIEL_HAVE_CUDA)
    list(APPEND arg_SOURCES ${arg_CUDA_SOURCES})
  endif()
  add_library(oriel_${name} STATIC ${arg_SOURCES})
  target_include_directories(oriel_${name} PUBLIC
    ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src)
  if(ORIEL_HAVE_CUDA)
    target_include_directories(oriel_${name} SYSTEM PUBLIC ${CUDAToolkit_INCLUDE_DIRS})
  endif()
  target_link_libraries(oriel_${name} PUBLIC Threads::Threads oriel_fmt
    PRIVATE oriel_build_flags)
  if(ORIEL_SANITIZE_MODULES)
    target_compile_options(oriel_${name} PRIVATE
      "$<$<COMPILE_LANGUAGE:C,CXX>:-fsanitize=${ORIEL_SANITIZE_MODULES};-fno-sanitize-recover=all>")
  endif()
  foreach(module ${arg_MODULES})
    target_link_libraries(oriel_${name} PUBLIC oriel_${module})
  endforeach()
  target_link_libraries(oriel_${name} PUBLIC ${arg_LIBRARIES})
  oriel_unite(oriel_${name})
  if(ORIEL_PRECOMPILE STREQUAL "ALL" AND name STREQUAL "base")
    target_precompile_headers(oriel_base PRIVATE ${ORIEL_COMMON_HEADERS})
  elseif(ORIEL_PRECOMPILE STREQUAL "ALL")
    target_precompile_headers(oriel_${name} REUSE_FROM oriel_base)
  endif()
endfunction()

# oriel_add_test(NAME SOURCES ... MODULES ... [CUDA_SOURCES ...] [PROGRAM program] [LABELS ...]
#                [TIMEOUT seconds] [COST seconds] [LIBRARIES ...]
#                [ONE_THREAD | PROCESSES | THREAD_CASES case ...])
#
#   Adds a ctest test: a Catch2 program whose exit status is the result. If a program can run
#   nothing on this machine, it exits with 77, which ctest counts as skipped. Tests of a folder that
#   name the same PROGRAM are linked into one, which saves most of the time to compile and link
#   them. Each test then runs the cases of its own SOURCES (Catch2's file names as tags). ctest
#   starts tests with the greatest COST first, so that no long test runs alone at the end.
#   ONE_THREAD: no threads share memory in the test or in the code under test. PROCESSES: the ranks
#   are processes, whose threads other tests cover. In both cases the thread sanitizer neither
#   builds nor runs the test. THREAD_CASES lists cases of a PROGRAM, as Catch2 patterns; the thread
#   sanitizer runs only these.
function(oriel_add_test name)
  cmake_parse_arguments(arg "ONE_THREAD;PROCESSES" "TIMEOUT;COST;PROGRAM"
    "SOURCES;CUDA_SOURCES;MODULES;LABELS;LIBRARIES;THREAD_CASES" ${ARGN})
  if(ORIEL_HAVE_CUDA)
    list(APPEND arg_SOURCES ${arg_CUDA_SOURCES})
  endif()
  if((arg_ONE_THREAD OR arg_PROCESSES) AND ORIEL_SANITIZE STREQUAL "thread")
    set(reason "its threads share no memory, so there is nothing for the thread sanitizer")
    if(arg_PROCESSES)
      set(reason "its ranks are processes, whose threads other tests show to the thread sanitizer")
    endif()
    add_test(NAME ${name} COMMAND ${CMAKE_COMMAND} -E echo "skipped: ${reason}")
    set_tests_properties(${name} PROPERTIES SKIP_REGULAR_EXPRESSION "skipped"
      LABELS "${arg_LABELS}")
    return()
  endif()
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 120)
  endif()
  set(command ${name})
  set(program ${name})
  if(arg_PROGRAM)
    set(program ${arg_PROGRAM})
    set(filter "")
    foreach(source ${arg_SOURCES})
      cmake_path(GET source STEM stem)
      if(stem MATCHES "_test$" AND NOT (arg_THREAD_CASES AND ORIEL_SANITIZE STREQUAL "thread"))
        string(APPEND filter "[#${stem}],")
      endif()
    endforeach()
    set(command ${program} --filenames-as-tags "${filter}")
    if(NOT filter)  # a pattern that no case has is an error
      list(JOIN arg_THREAD_CASES "," filter)
      set(warning NoTests)
      if(Catch2_VERSION VERSION_GREATER_EQUAL 3)
        set(warning UnmatchedTestSpec)
      endif()
      set(command ${program} --warn ${warning} "${filter}")
    endif()
  endif()
  oriel_test_program(${program} "${arg_SOURCES}" "${arg_MODULES}" "${arg_LIBRARIES}")
  if(arg_PROGRAM)
    oriel_unite(${program})
  endif()
  add_test(NAME ${name} COMMAND ${command})
  if(ORIEL_SANITIZE)  # programs are slower, and builds and checkers run beside them
    math(EXPR arg_TIMEOUT "2 * ${arg_TIMEOUT}")
  endif()
  set_tests_properties(${name} PROPERTIES TIMEOUT ${arg_TIMEOUT}
    SKIP_RETURN_CODE 77 LABELS "${arg_LABELS}")
  if(arg_COST)
    set_tests_properties(${name} PROPERTIES COST ${arg_COST})
  endif()
  if(arg_LABELS MATCHES "gpu")  # one at a time: tests count the memory of a GPU
    set_tests_properties(${name} PROPERTIES RESOURCE_LOCK gpu)
  elseif("mp" IN_LIST arg_LABELS)  # CPU ranks, also on a machine that has GPUs
    set_tests_properties(${name} PROPERTIES ENVIRONMENT ORIEL_BACKEND=host)
  endif()
endfunction()

# Adds a test program, or adds sources to the program of an earlier test of the folder. With
# ORIEL_UNITY the sources of a shared PROGRAM are compiled a few together, so no two of them may
# define the same name.
function(oriel_test_program program sources modules libraries)
  if(TARGET ${program})
    get_target_property(present ${program} SOURCES)
    list(REMOVE_ITEM sources ${present})
    target_sources(${program} PRIVATE ${sources})
  else()
    add_executable(${program} ${sources})
    target_link_libraries(${program} PRIVATE oriel_test_support oriel_build_flags)
    if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND ORIEL_SANITIZE STREQUAL "address")
      # Computation is a fifth faster if the program contains the sanitizer runtime's thread locals.
      target_link_options(${program} PRIVATE -static-libasan)
    endif()
    if(ORIEL_PRECOMPILE)
      target_precompile_headers(${program} REUSE_FROM oriel_test_headers)
    endif()
  endif()
  list(TRANSFORM modules PREPEND oriel_)
  target_link_libraries(${program} PRIVATE ${libraries} ${modules})
endfunction()

# oriel_add_corpus_run(NAME MODULES ...): runs a fuzz target of test/fuzz on its corpus, and then
# for 200 ms on changes of it. The build of the thread sanitizer leaves it out. test/fuzz builds the
# same target with libFuzzer.
function(oriel_add_corpus_run name)
  cmake_parse_arguments(arg "" "" "MODULES" ${ARGN})
  if(ORIEL_SANITIZE STREQUAL "thread")  # they start none
    return()
  endif()
  set(fuzz ${PROJECT_SOURCE_DIR}/test/fuzz)
  file(GLOB source ${fuzz}/*/*/${name}_fuzz.cpp)
  add_executable(corpus_${name} ${source} ${fuzz}/plain_mutator.cpp
    ${fuzz}/plain_run.cpp)
  target_compile_definitions(corpus_${name} PRIVATE ORIEL_RUN_MILLISECONDS=200)
  target_link_libraries(corpus_${name} PRIVATE oriel_build_flags)
  target_include_directories(corpus_${name} PRIVATE ${PROJECT_SOURCE_DIR}/test)
  foreach(module ${arg_MODULES})
    target_link_libraries(corpus_${name} PRIVATE oriel_${module})
  endforeach()
  file(GLOB corpus CONFIGURE_DEPENDS ${fuzz}/corpus/${name}/*)
  add_test(NAME fuzz_corpus_${name} COMMAND corpus_${name} ${corpus})
  set_tests_properties(fuzz_corpus_${name} PROPERTIES LABELS unit TIMEOUT 120)
endfunction()
