/* SPDX-FileCopyrightText: The Oriel authors
   SPDX-License-Identifier: Apache-2.0 */
/* every_call RANKS HEADER: makes every function of nccl.h on 2 to 8 ranks, which are processes with
   host memory, and checks each result. Names a failure's rank, call, expected and actual result,
   and every function that the header declares and nobody called; exits with 1 then. [req:5.20] */
#define _DEFAULT_SOURCE
#include "every_call.h"

#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* Unique ids of the communicators that the ranks start; the scalable one takes two. */
enum { kPlain, kBlocking, kNonBlocking, kScalable, kScalableToo, kLost, kIds };
enum { kSeconds = 200, kAttempts = 30000 };

/* Polls until the communicator's asynchronous result is no longer `state`, and returns it. Gives up
   after kAttempts polls. */
static ncclResult_t wait_while(ncclComm_t comm, ncclResult_t state) {
  const struct timespec pause = {.tv_nsec = 1000000};
  ncclResult_t result = state;
  for (int i = 0; i < kAttempts && result == state; ++i) {
    TRY(CommGetAsyncError, (comm, &result));
    if (result == state) nanosleep(&pause, NULL);
  }
  return result;
}

/* Requires that a non-blocking communicator accepts a call, and that the call succeeds. */
#define TRY_LATER(comm, name, args)                                                          \
  do {                                                                                       \
    const ncclResult_t started = CALL(name, args);                                           \
    if (started != ncclInProgress) {                                                         \
      expect_result(__FILE__, __LINE__, "nccl" #name #args, ncclSuccess, started);           \
    }                                                                                        \
    expect_result(__FILE__, __LINE__, "nccl" #name #args ", in the background", ncclSuccess, \
                  wait_while(comm, ncclInProgress));                                         \
  } while (0)

static void check_place(ncclComm_t comm, int rank, int size) {
  int value = -2;
  TRY(CommCount, (comm, &value));
  EXPECT_INT("ncclCommCount", size, value);
  TRY(CommUserRank, (comm, &value));
  EXPECT_INT("ncclCommUserRank", rank, value);
  TRY(CommCuDevice, (comm, &value));
  EXPECT_INT("ncclCommCuDevice", -1, value);
}

static void check_versions_and_texts(void) {
  int version = 0;
  ncclUniqueId ids[2];
  TRY(GetVersion, (&version));
  EXPECT_INT("ncclGetVersion", NCCL_VERSION_CODE, version);
  EXPECT(ncclInvalidArgument, GetVersion, (NULL));
  EXPECT_WORD("version");
  CALL(ResetDebugInit, ());
  TRY(GetUniqueId, (&ids[0]));
  TRY(GetUniqueId, (&ids[1]));
  EXPECT_INT("two unique ids are equal", 0, memcmp(&ids[0], &ids[1], sizeof ids[0]) == 0);
  EXPECT(ncclInvalidArgument, GetUniqueId, (NULL));
  for (int i = 0; i <= ncclNumResults; ++i) {
    const char* text = CALL(GetErrorString, ((ncclResult_t)i));
    EXPECT_INT("length of an error string is 0", 0, text[0] == '\0');
    for (int j = 0; j < i; ++j) {
      const int equal = strcmp(text, CALL(GetErrorString, ((ncclResult_t)j))) == 0;
      EXPECT_INT("two error strings are equal", 0, equal);
    }
  }
}

/* Uses malloc buffers, then windows, at equal and at different offsets on the ranks. */
static void check_on_memory(ncclComm_t comm, int rank, int size) {
  const size_t page = NCCL_WIN_REQUIRED_ALIGNMENT;
  const size_t bytes = (collective_bytes(size) + page - 1) / page * page;
  Member m = {.comm = comm, .rank = rank, .size = size, .bytes = bytes};
  void* memory = NULL;
  void* handle = NULL;
  ncclWindow_t windows[2] = {NULL, NULL};
  m.input = malloc(2 * bytes);
  m.output = m.input + bytes;
  check_collectives(&m, 0);
  check_point_to_point(&m);
  TRY(CommRegister, (comm, m.input, 2 * bytes, &handle));
  check_collectives(&m, 1);
  TRY(CommDeregister, (comm, handle));
  EXPECT(ncclInvalidArgument, CommDeregister, (comm, handle));
  free(m.input);

  TRY(MemAlloc, (&memory, 2 * bytes + kMostRanks * page));
  EXPECT_INT("ncclMemAlloc's alignment", 0, (uintptr_t)memory % page);
  for (int symmetric = 0; symmetric < 2; ++symmetric) {
    const int flags = symmetric ? NCCL_WIN_COLL_SYMMETRIC : NCCL_WIN_DEFAULT;
    m.input = (char*)memory + (symmetric ? 0 : (size_t)rank * page);
    m.output = m.input + bytes;
    TRY(CommWindowRegister, (comm, m.input, bytes, &windows[0], flags));
    TRY(GroupStart, ());
    TRY(CommWindowRegister, (comm, m.output, bytes, &windows[1], flags));
    TRY(GroupEnd, ());
    EXPECT_INT("windows are null", 0, windows[0] == NULL || windows[1] == NULL);
    check_collectives(&m, 1);
    check_point_to_point(&m);
    EXPECT(ncclInvalidUsage, MemFree, (memory));
    TRY(CommWindowDeregister, (comm, windows[0]));
    TRY(CommWindowDeregister, (comm, windows[1]));
    EXPECT(ncclInvalidArgument, CommWindowDeregister, (comm, windows[0]));
  }
  TRY(MemFree, (memory));
  TRY(MemFree, (NULL));
  EXPECT(ncclInvalidArgument, MemFree, (&memory));
  EXPECT(ncclInvalidArgument, MemAlloc, (&memory, 0));
}

static void check_refusals(ncclComm_t comm, int size) {
  int32_t value = 1;
  int excluded = 0;
  ncclComm_t child = comm;
  EXPECT(ncclInvalidUsage, CommShrink, (comm, &excluded, 1, &child, NULL, NCCL_SHRINK_DEFAULT));
  EXPECT_WORD("ncclCommShrink");
  EXPECT_INT("ncclCommShrink's communicator is null", 1, child == NULL);
  EXPECT(ncclInvalidUsage, DevCommCreate, (comm, NULL, NULL));
  EXPECT_WORD("ncclDevCommCreate");
  EXPECT(ncclInvalidUsage, DevCommDestroy, (comm, NULL));
  EXPECT_WORD("ncclDevCommDestroy");
  EXPECT(ncclInvalidArgument, AllReduce, (&value, &value, 1, ncclNumTypes, ncclSum, comm, NULL));
  EXPECT_WORD("ncclAllReduce");
  EXPECT(ncclInvalidArgument, AllReduce, (&value, &value, 1, ncclInt32, ncclNumOps, comm, NULL));
  EXPECT(ncclInvalidArgument, AllReduce, (NULL, &value, 1, ncclInt32, ncclSum, comm, NULL));
  EXPECT(ncclInvalidArgument, AllReduce, (&value, &value, 1, ncclInt32, ncclSum, NULL, NULL));
  EXPECT(ncclInvalidArgument, Broadcast, (&value, &value, 1, ncclInt32, size, comm, NULL));
  EXPECT_WORD("root");
  EXPECT(ncclInvalidArgument, RedOpDestroy, (ncclSum, comm));
  EXPECT(ncclInvalidArgument, CommRevoke, (comm, 1));
  TRY(CommDestroy, (NULL));
  check_sum(comm, size);
}

/* Splits with unusual colors and keys: reversed ranks, pairs, no color for rank 0. A child outlives
   its parent. */
static void check_splits(ncclComm_t comm, int rank, int size) {
  ncclComm_t backwards = NULL;
  ncclComm_t pair = NULL;
  ncclComm_t others = comm;
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  const int pair_size = rank / 2 * 2 + 1 < size ? 2 : 1;
  config.splitShare = 1;
  config.commName = "pair";
  TRY(CommSplit, (comm, INT_MAX, -rank, &backwards, NULL));
  check_place(backwards, size - 1 - rank, size);
  TRY(CommSplit, (comm, 7 + rank / 2 * 1000003, INT_MIN + rank, &pair, &config));
  check_place(pair, rank % 2, pair_size);
  TRY(CommSplit, (comm, rank == 0 ? NCCL_SPLIT_NOCOLOR : 1, 5, &others, NULL));
  EXPECT_INT("ncclCommSplit's communicator is null", rank == 0, others == NULL);
  EXPECT(ncclInvalidArgument, CommSplit, (comm, -2, 0, &backwards, NULL));
  EXPECT_WORD("color");
  EXPECT_INT("a refused split's communicator is null", 1, backwards == NULL);
  TRY(CommSplit, (pair, 0, 1 - rank % 2, &backwards, NULL));
  TRY(CommDestroy, (pair));
  check_sum(backwards, pair_size);
  TRY(CommDestroy, (backwards));
  if (rank != 0) {
    check_place(others, rank - 1, size - 1);
    check_sum(others, size - 1);
    TRY(CommDestroy, (others));
  }
  check_sum(comm, size);
}

static void check_plain(const ncclUniqueId* id) {
  ncclComm_t comm = NULL;
  int value = 0;
  EXPECT(ncclInvalidArgument, CommInitRank, (&comm, ranks, *id, ranks));
  EXPECT_WORD("rank");
  TRY(CommInitRank, (&comm, ranks, *id, this_rank));
  check_place(comm, this_rank, ranks);
  check_on_memory(comm, this_rank, ranks);
  check_refusals(comm, ranks);
  check_splits(comm, this_rank, ranks);
  TRY(CommFinalize, (comm));
  check_place(comm, this_rank, ranks);
  EXPECT(ncclInvalidUsage, AllReduce, (&value, &value, 1, ncclInt32, ncclSum, comm, NULL));
  EXPECT_WORD("inaliz");
  TRY(CommDestroy, (comm));
  EXPECT(ncclInvalidArgument, CommCount, (comm, &value));
  EXPECT_WORD("no communicator");
}

static void check_configured(const ncclUniqueId* ids) {
  ncclComm_t comm = NULL;
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 1;
  config.minCTAs = 1;
  config.maxCTAs = 4;
  config.commName = "every_call";
  TRY(CommInitRankConfig, (&comm, ranks, ids[kBlocking], this_rank, &config));
  check_place(comm, this_rank, ranks);
  check_sum(comm, ranks);
  TRY(CommDestroy, (comm));
  TRY(CommInitRankScalable, (&comm, ranks, this_rank, 2, (ncclUniqueId*)&ids[kScalable], NULL));
  check_place(comm, this_rank, ranks);
  check_sum(comm, ranks);
  EXPECT_INT("ncclCommGetAsyncError", ncclSuccess, wait_while(comm, ncclInProgress));
  TRY(CommFinalize, (comm));
  TRY(CommDestroy, (comm));
}

static void check_non_blocking(const ncclUniqueId* id) {
  ncclComm_t comm = NULL;
  ncclComm_t child = NULL;
  void* memory = NULL;
  ncclWindow_t window = NULL;
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  TRY_LATER(comm, CommInitRankConfig, (&comm, ranks, *id, this_rank, &config));
  check_place(comm, this_rank, ranks);
  check_sum(comm, ranks);
  TRY(MemAlloc, (&memory, NCCL_WIN_REQUIRED_ALIGNMENT));
  TRY_LATER(comm, CommWindowRegister,
            (comm, memory, NCCL_WIN_REQUIRED_ALIGNMENT, &window, NCCL_WIN_COLL_SYMMETRIC));
  EXPECT_INT("the window is null", 0, window == NULL);
  TRY_LATER(comm, CommSplit, (comm, 3, this_rank, &child, NULL));
  EXPECT_INT("the child's state", ncclSuccess, wait_while(child, ncclInProgress));
  check_sum(child, ranks);
  TRY_LATER(child, CommFinalize, (child));
  TRY(CommDestroy, (child));
  TRY(CommWindowDeregister, (comm, window));
  TRY(MemFree, (memory));
  TRY_LATER(comm, CommFinalize, (comm));
  TRY(CommDestroy, (comm));
}

/* Runs all ranks of one communicator in this process, with their calls in groups. */
static void check_all_in_one(void) {
  ncclComm_t comms[kMostRanks];
  int32_t sums[kMostRanks];
  const int devices[kMostRanks] = {0};
  EXPECT(ncclInvalidArgument, CommInitAll, (comms, ranks, devices));
  EXPECT_WORD("devlist");
  TRY(CommInitAll, (comms, ranks, NULL));
  TRY(GroupStart, ());
  for (int i = 0; i < ranks; ++i) {
    sums[i] = i;
    check_place(comms[i], i, ranks);
    TRY(AllReduce, (&sums[i], &sums[i], 1, ncclInt32, ncclSum, comms[i], NULL));
  }
  TRY(GroupEnd, ());
  for (int i = 0; i < ranks; ++i) {
    EXPECT_INT("sum of ncclCommInitAll's ranks", ranks * (ranks - 1) / 2, sums[i]);
  }
  for (int i = 0; i < ranks; ++i) TRY(CommDestroy, (comms[i]));
}

/* Rank 0 aborts the child, then revokes the parent. The other ranks detect each and do the same.
   The parent works until then. */
static void check_ends(const ncclUniqueId* id) {
  ncclComm_t comms[2] = {NULL, NULL};
  int32_t value = 1;
  TRY(CommInitRank, (&comms[0], ranks, *id, this_rank));
  TRY(CommSplit, (comms[0], 0, 0, &comms[1], NULL));
  for (int aborts = 1; aborts >= 0; --aborts) {
    ncclComm_t comm = comms[aborts];
    check_sum(comm, ranks);
    if (this_rank != 0) {
      EXPECT_INT("state when a rank has ended", ncclRemoteError, wait_while(comm, ncclSuccess));
      const char* text = CALL(GetLastError, (comm));
      EXPECT_INT("the error names rank 0", 1, strstr(text, "rank 0") != NULL);
    }
    if (!aborts) {
      TRY(CommRevoke, (comm, NCCL_REVOKE_DEFAULT));
      EXPECT_INT("state when revoked", ncclSuccess, wait_while(comm, ncclInProgress));
      check_place(comm, this_rank, ranks);
      EXPECT(ncclInvalidUsage, CommRevoke, (comm, NCCL_REVOKE_DEFAULT));
      const ncclResult_t expected = this_rank == 0 ? ncclInvalidUsage : ncclRemoteError;
      EXPECT(expected, AllReduce, (&value, &value, 1, ncclInt32, ncclSum, comm, NULL));
    }
    TRY(CommAbort, (comm));
    EXPECT(ncclInvalidArgument, CommUserRank, (comm, &value));
  }
}

static int run_rank(int rank, int ids_end) {
  ncclUniqueId ids[kIds];
  this_rank = rank;
  alarm(kSeconds);
  if (read(ids_end, ids, sizeof ids) != (ssize_t)sizeof ids) return 1;
  check_versions_and_texts();
  check_plain(&ids[kPlain]);
  check_configured(ids);
  check_non_blocking(&ids[kNonBlocking]);
  check_all_in_one();
  check_ends(&ids[kLost]);
  return failures() > 0;
}

/* Forks a rank, which reads the unique ids from a pipe; stores the pipe's other end. Forks
   before any call, because the thread sanitizer allows no threads in the child of a process with
   threads. */
static int fork_rank(int rank, int* ids_pipe) {
  int ends[2];
  if (pipe(ends) != 0) return -1;
  const pid_t child = fork();
  if (child == 0) _exit(run_rank(rank, ends[0]));
  close(ends[0]);
  *ids_pipe = ends[1];
  return child < 0 ? -1 : 0;
}

int main(int argc, char** argv) {
  ncclUniqueId ids[kIds];
  int ids_pipes[kMostRanks];
  int failed = 0;
  ranks = argc == 3 ? atoi(argv[1]) : 0;
  if (ranks < 2 || ranks > kMostRanks) {
    fprintf(stderr, "usage: every_call RANKS HEADER, with 2 to %d ranks\n", kMostRanks);
    return 2;
  }
  open_notes();
  for (int i = 0; i < ranks; ++i) {
    if (fork_rank(i, &ids_pipes[i]) != 0) {
      perror("fork");
      return 1;
    }
  }
  this_rank = ranks;
  for (int i = 0; i < kIds; ++i) TRY(GetUniqueId, (&ids[i]));
  for (int i = 0; i < ranks; ++i) {
    if (write(ids_pipes[i], ids, sizeof ids) != (ssize_t)sizeof ids) ++failed;
  }
  for (int i = 0; i < ranks; ++i) {
    int status = 0;
    if (wait(&status) < 0 || status != 0) ++failed;
  }
  if (failed == 0) failed = compare_with_header(argv[2]);
  if (failed > 0) fprintf(stderr, "every_call: failed\n");
  return failed > 0;
}
