/* SPDX-FileCopyrightText: The Oriel authors
   SPDX-License-Identifier: Apache-2.0 */
/* Shared by the files of every_call, which makes each call of nccl.h on host memory. */
#ifndef EVERY_CALL_H_
#define EVERY_CALL_H_

#include <stddef.h>

#include <nccl.h>

enum { kMostRanks = 8 };

/* Rank of this process, and the number of ranks. The parent process has the rank `ranks`. */
extern int this_rank;
extern int ranks;

/* One rank's place in a communicator, and two buffers of `bytes` bytes. */
typedef struct {
  ncclComm_t comm;
  int rank;
  int size;
  char* input;
  char* output;
  size_t bytes;
} Member;

/* Calls ncclNAME on even ranks and pncclNAME on odd ranks, and records the name. */
#define CALL(name, args) (note_call(#name), this_rank % 2 == 0 ? nccl##name args : pnccl##name args)

/* Makes a call and compares its result. Another result ends the process, because its peers would
   wait for ever. */
#define EXPECT(expected, name, args) \
  expect_result(__FILE__, __LINE__, "nccl" #name #args, expected, CALL(name, args))
#define TRY(name, args) EXPECT(ncclSuccess, name, args)

/* Compares the outcome of a call with an integer; a difference is printed and counted. */
#define EXPECT_INT(what, expected, got) \
  expect_int(__FILE__, __LINE__, what, (long long)(expected), (long long)(got))

/* Requires that the text of this thread's last error contains the word. */
#define EXPECT_WORD(word) expect_word(__FILE__, __LINE__, word)

void note_call(const char* name);
void expect_result(const char* file, int line, const char* call, ncclResult_t expected,
                   ncclResult_t got);
void expect_int(const char* file, int line, const char* what, long long expected, long long got);
void expect_word(const char* file, int line, const char* word);
int failures(void);

/* Opens the notes of all processes in shared memory; to be called before a fork. */
void open_notes(void);
/* Prints each function that the header at `path` declares and no process has called, and each
   function called that the header does not declare. Returns their number, or 1 without a header. */
int compare_with_header(const char* path);

/* Bytes that each buffer of a Member needs. */
size_t collective_bytes(int size);
/* Makes the collectives without a reduction for every type, in place where that is allowed, and
   not in place. Makes the reductions for every type and operation, each in one of the two forms.
   Among more than four ranks, each type and operation gets one of the three reductions. `quick`
   leaves out most. */
void check_collectives(const Member* member, int quick);
/* Sends and receives: ring, self, all pairs, in order, without a group, beside a collective. */
void check_point_to_point(const Member* member);
/* Runs an all-reduce in which every rank adds one. */
void check_sum(ncclComm_t comm, int size);

#endif
