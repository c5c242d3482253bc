// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <nccl.h>

#define TRY(call)                                                 \
  do {                                                            \
    if ((call) != ncclSuccess) {                                  \
      fprintf(stderr, "%s: %s\n", #call, ncclGetLastError(NULL)); \
      return 1;                                                   \
    }                                                             \
  } while (0)

static int run(int rank, ncclUniqueId id) {
  enum { kCount = 4 };
  ncclComm_t comm;
  ncclWindow_t window;
  float* data;
  TRY(ncclCommInitRank(&comm, 2, id, rank));
  TRY(ncclMemAlloc((void**)&data, kCount * sizeof *data));
  TRY(ncclCommWindowRegister(comm, data, kCount * sizeof *data, &window, NCCL_WIN_COLL_SYMMETRIC));
  for (int i = 0; i < kCount; ++i) data[i] = (float)(10 * rank + i);
  TRY(ncclAllReduce(data, data, kCount, ncclFloat, ncclSum, comm, NULL));
  printf("rank %d: %g %g %g %g\n", rank, data[0], data[1], data[2], data[3]);
  TRY(ncclCommWindowDeregister(comm, window));
  TRY(ncclMemFree(data));
  TRY(ncclCommDestroy(comm));
  return 0;
}

int main(void) {
  ncclUniqueId id;
  TRY(ncclGetUniqueId(&id));
  const pid_t other = fork();
  if (other == 0) return run(1, id);
  const int failed = run(0, id);
  int status = 0;
  waitpid(other, &status, 0);
  return failed || status != 0;
}
