/* SPDX-FileCopyrightText: The Oriel authors
   SPDX-License-Identifier: Apache-2.0 */
/* A typical profiler: defines ncclAllReduce, prints the element count, and calls pncclAllReduce. */
#include <stdio.h>

#include <nccl.h>

__attribute__((visibility("default"))) ncclResult_t ncclAllReduce(const void* send, void* receive,
                                                                  size_t count, ncclDataType_t type,
                                                                  ncclRedOp_t op, ncclComm_t comm,
                                                                  cudaStream_t stream) {
  fprintf(stderr, "profiler: %zu elements\n", count);
  return pncclAllReduce(send, receive, count, type, op, comm, stream);
}
