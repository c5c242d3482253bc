# SPDX-License-Identifier: Apache-2.0
# Checks that equal objects give the same build number, and different objects another one:
#   cmake -DSOURCES=src -DFOLDER=scratch -P build_number.cmake
file(WRITE ${FOLDER}/a.o "a")
file(WRITE ${FOLDER}/b.o "b")
file(WRITE ${FOLDER}/same_as_b.o "b")
foreach(set b same_as_b a)
  file(WRITE ${FOLDER}/${set}.txt "${FOLDER}/a.o\n${FOLDER}/${set}.o\n")
  execute_process(COMMAND ${CMAKE_COMMAND} -DOBJECTS=${FOLDER}/${set}.txt -DPROJECT_VERSION=1.2.3
    -DTEMPLATE=${SOURCES}/exports.map.in -DOUT=${FOLDER}/${set}.map -P ${SOURCES}/exports.cmake
    COMMAND_ERROR_IS_FATAL ANY)
  file(READ ${FOLDER}/${set}.map map)
  string(REGEX MATCH "ORIEL_BUILD_1[.]2[.]3_[0-9a-f]+ " number_${set} "${map}")
endforeach()
if(NOT number_b OR NOT number_b STREQUAL number_same_as_b OR number_b STREQUAL number_a)
  message(FATAL_ERROR "numbers '${number_b}', '${number_same_as_b}', '${number_a}': the first two "
    "must be equal, the third must differ")
endif()
