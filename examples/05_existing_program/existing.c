// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
// A program for NCCL without any knowledge of Oriel: two ranks of one process, in a group.
#include <stdio.h>

#include <nccl.h>

#define TRY(call)                                                     \
  do {                                                                \
    const ncclResult_t status = (call);                               \
    if (status != ncclSuccess) {                                      \
      fprintf(stderr, "%s: %s\n", #call, ncclGetErrorString(status)); \
      return 1;                                                       \
    }                                                                 \
  } while (0)

int main(void) {
  enum { kRanks = 2, kCount = 1024 };
  ncclComm_t comms[kRanks];
  ncclUniqueId id;
  float* data[kRanks];
  int version = 0;
  TRY(ncclGetVersion(&version));
  TRY(ncclGetUniqueId(&id));
  TRY(ncclGroupStart());
  for (int rank = 0; rank < kRanks; ++rank) TRY(ncclCommInitRank(&comms[rank], kRanks, id, rank));
  TRY(ncclGroupEnd());
  for (int rank = 0; rank < kRanks; ++rank) {
    TRY(ncclMemAlloc((void**)&data[rank], kCount * sizeof(float)));
    for (int i = 0; i < kCount; ++i) data[rank][i] = (float)(rank + 1);
  }
  TRY(ncclGroupStart());
  for (int rank = 0; rank < kRanks; ++rank) {
    TRY(ncclAllReduce(data[rank], data[rank], kCount, ncclFloat, ncclSum, comms[rank], NULL));
  }
  TRY(ncclGroupEnd());
  printf("NCCL %d: the sum is %g\n", version, data[0][kCount - 1]);
  for (int rank = 0; rank < kRanks; ++rank) {
    TRY(ncclMemFree(data[rank]));
    TRY(ncclCommDestroy(comms[rank]));
  }
  return 0;
}
