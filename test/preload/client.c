/* SPDX-FileCopyrightText: The Oriel authors
   SPDX-License-Identifier: Apache-2.0 */
/* An existing NCCL program with two ranks of its own. Prints the library's version and rank 0's
   sums; exits with 3 if a call fails. */
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <nccl.h>

enum { kCount = 4, kFailed = 3 };

#define TRY(call)                                                 \
  do {                                                            \
    if ((call) != ncclSuccess) {                                  \
      fprintf(stderr, "%s: %s\n", #call, ncclGetLastError(NULL)); \
      return kFailed;                                             \
    }                                                             \
  } while (0)

static int run(int rank, ncclUniqueId id) {
  ncclComm_t comm;
  float data[kCount];
  TRY(ncclCommInitRank(&comm, 2, id, rank));
  for (int i = 0; i < kCount; ++i) data[i] = (float)(10 * rank + i);
  TRY(ncclAllReduce(data, data, kCount, ncclFloat, ncclSum, comm, NULL));
  if (rank == 0) printf("sums %g %g %g %g\n", data[0], data[1], data[2], data[3]);
  TRY(ncclCommDestroy(comm));
  return 0;
}

int main(void) {
  int version = 0;
  int status = 0;
  ncclUniqueId id;
  TRY(ncclGetVersion(&version));
  printf("version %d\n", version);
  fflush(stdout);
  TRY(ncclGetUniqueId(&id));
  const pid_t other = fork();
  if (other == 0) return run(1, id);
  const int failed = run(0, id);
  waitpid(other, &status, 0);
  return failed != 0 || status != 0 ? kFailed : 0;
}
