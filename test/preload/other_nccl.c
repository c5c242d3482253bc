/* SPDX-FileCopyrightText: The Oriel authors
   SPDX-License-Identifier: Apache-2.0 */
/* Stands in for another vendor's library: the same names and another version. Its calls that make,
   use or destroy a communicator fail. */
#include <string.h>

#include <nccl.h>

#define SHOWN __attribute__((visibility("default")))

/* Has a name like those under which NCCL registers its kernels. */
SHOWN const char* const other_kernel = "ncclDevKernel_AllReduce_Sum_f32_RING_LL";

SHOWN ncclResult_t ncclGetVersion(int* version) {
  *version = 10000;
  return ncclSuccess;
}
SHOWN ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  memset(id, (int)strlen(other_kernel), sizeof *id);
  return ncclSuccess;
}
SHOWN const char* ncclGetErrorString(ncclResult_t result) {
  (void)result;
  return "from the other library";
}
SHOWN const char* ncclGetLastError(ncclComm_t comm) {
  (void)comm;
  return "from the other library";
}
SHOWN ncclResult_t ncclCommInitRank(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank) {
  (void)comm, (void)ranks, (void)id, (void)rank;
  return ncclInternalError;
}
SHOWN ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  (void)comm;
  return ncclInternalError;
}
SHOWN ncclResult_t ncclAllReduce(const void* send, void* receive, size_t count, ncclDataType_t type,
                                 ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  (void)send, (void)receive, (void)count, (void)type, (void)op, (void)comm, (void)stream;
  return ncclInternalError;
}
