/* SPDX-FileCopyrightText: The Oriel authors
   SPDX-License-Identifier: Apache-2.0 */
/* Two processes add four numbers through the C interface of an installed Oriel. The exit status of
   a failure is the line of the failed check in this file. */
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <nccl.h>

#define REQUIRE(condition) \
  if (!(condition)) return __LINE__

static int add_up(int rank, ncclUniqueId id) {
  enum { kCount = 4 };
  ncclComm_t comm;
  float data[kCount];
  for (int i = 0; i < kCount; ++i) data[i] = (float)(10 * rank + i);
  REQUIRE(ncclCommInitRank(&comm, 2, id, rank) == ncclSuccess);
  REQUIRE(ncclAllReduce(data, data, kCount, ncclFloat, ncclSum, comm, NULL) == ncclSuccess);
  for (int i = 0; i < kCount; ++i) REQUIRE(data[i] == (float)(10 + 2 * i));
  REQUIRE(ncclCommDestroy(comm) == ncclSuccess);
  return 0;
}

int main(void) {
  int version = 0;
  int status = 0;
  ncclUniqueId id;
  REQUIRE(ncclGetVersion(&version) == ncclSuccess);
  REQUIRE(version == NCCL_VERSION_CODE);
  REQUIRE(ncclGetVersion(NULL) == ncclInvalidArgument);
  REQUIRE(ncclGetUniqueId(&id) == ncclSuccess);
  const pid_t other = fork();
  if (other == 0) return add_up(1, id);
  const int failed = add_up(0, id);
  REQUIRE(waitpid(other, &status, 0) == other);
  if (failed != 0) return failed;
  REQUIRE(status == 0);
  printf("nccl %d through C: two ranks have added\n", version);
  return 0;
}
