# SPDX-License-Identifier: Apache-2.0
# Writes one line ORIEL_FORWARD(ncclX) for each entry oriel_ncclX that LIBRARY exports:
#   cmake -DNM=nm -DLIBRARY=liboriel.so.0 -DOUT=entries.inc -P list_entries.cmake
execute_process(COMMAND ${NM} -D --defined-only ${LIBRARY} OUTPUT_VARIABLE symbols
  COMMAND_ERROR_IS_FATAL ANY)
string(REGEX MATCHALL " T oriel_nccl[A-Za-z0-9]+" entries "${symbols}")
if(NOT entries)
  message(FATAL_ERROR "${LIBRARY} exports no oriel_nccl*")
endif()
list(TRANSFORM entries REPLACE " T oriel_(.+)" "ORIEL_FORWARD(\\1)\n")
string(JOIN "" text ${entries})
file(WRITE ${OUT} "${text}")
