/* SPDX-FileCopyrightText: The Oriel authors
   SPDX-License-Identifier: Apache-2.0 */
/* Sends and receives of nccl.h, and groups of calls. */
#include <stdint.h>
#include <string.h>

#include "every_call.h"

enum { kMost = 4096, kGroupCalls = 4 };

/* Element `i` of message `number` from one rank to another. */
static int32_t message_value(int from, int to, int number, size_t i) {
  return (int32_t)(((from * 10 + to) * 10 + number) * 10000 + (int)i);
}

static void fill(int32_t* buffer, size_t count, int from, int to, int number) {
  for (size_t i = 0; i < count; ++i) buffer[i] = message_value(from, to, number, i);
}

static void compare(const int32_t* buffer, size_t count, int from, int to, int number) {
  for (size_t i = 0; i < count; ++i) {
    const int32_t expected = message_value(from, to, number, i);
    if (buffer[i] == expected) continue;
    EXPECT_INT("ncclRecv", expected, buffer[i]);
    return;
  }
}

/* Each rank sends to the rank `hop` places ahead and receives from the one `hop` behind. A hop of 0
   is a message to itself. */
static void send_around(const Member* m, int hop) {
  const int next = (m->rank + hop) % m->size;
  const int previous = (m->rank + m->size - hop) % m->size;
  int32_t* const in = (int32_t*)m->input;
  int32_t* const out = (int32_t*)m->output;
  fill(in, kMost, m->rank, next, 1);
  memset(out, 0, kMost * sizeof *out);
  TRY(GroupStart, ());
  TRY(Send, (in, kMost, ncclInt32, next, m->comm, NULL));
  TRY(Recv, (out, kMost, ncclInt32, previous, m->comm, NULL));
  TRY(GroupEnd, ());
  compare(out, kMost, previous, m->rank, 1);
}

/* Sends two messages to every rank, this one included, with different lengths and an empty one. */
static void send_to_all(const Member* m) {
  const size_t stride = kMost / kMostRanks;
  TRY(GroupStart, ());
  for (int peer = 0; peer < m->size; ++peer) {
    for (int number = 0; number < 2; ++number) {
      int32_t* const in = (int32_t*)m->input + ((size_t)peer * 2 + (size_t)number) * stride;
      int32_t* const out = (int32_t*)m->output + ((size_t)peer * 2 + (size_t)number) * stride;
      const size_t sent = (size_t)((m->rank * 3 + peer) * (number + 1));
      const size_t received = (size_t)((peer * 3 + m->rank) * (number + 1));
      fill(in, sent, m->rank, peer, number);
      memset(out, 0, stride * sizeof *out);
      TRY(Send, (in, sent, ncclInt32, peer, m->comm, NULL));
      TRY(Recv, (out, received, ncclInt32, peer, m->comm, NULL));
    }
  }
  TRY(GroupEnd, ());
  for (int peer = 0; peer < m->size; ++peer) {
    for (int number = 0; number < 2; ++number) {
      const int32_t* const out = (int32_t*)m->output + ((size_t)peer * 2 + (size_t)number) * stride;
      const size_t received = (size_t)((peer * 3 + m->rank) * (number + 1));
      compare(out, received, peer, m->rank, number);
      EXPECT_INT("element behind a message", 0, out[received]);
    }
  }
}

/* Passes a message from rank to rank without a group, starting at rank 0. */
static void send_in_turn(const Member* m) {
  int32_t* const out = (int32_t*)m->output;
  if (m->rank > 0) {
    TRY(Recv, (out, kMost, ncclInt32, m->rank - 1, m->comm, NULL));
    compare(out, kMost, 0, m->size - 1, 3);
  } else {
    fill(out, kMost, 0, m->size - 1, 3);
  }
  if (m->rank + 1 < m->size) TRY(Send, (out, kMost, ncclInt32, m->rank + 1, m->comm, NULL));
}

/* Checks that nested groups execute nothing before the outer group ends. */
static void group_all_sorts(const Member* m) {
  const int next = (m->rank + 1) % m->size;
  const int previous = (m->rank + m->size - 1) % m->size;
  int64_t sums[kGroupCalls];
  int32_t sent = m->rank + 1;
  int32_t received = -1;
  TRY(GroupStart, ());
  TRY(Recv, (&received, 1, ncclInt32, previous, m->comm, NULL));
  for (int i = 0; i < kGroupCalls; ++i) {
    sums[i] = i;
    TRY(GroupStart, ());
    TRY(AllReduce, (&sums[i], &sums[i], 1, ncclInt64, ncclSum, m->comm, NULL));
    TRY(GroupEnd, ());
  }
  TRY(Send, (&sent, 1, ncclInt32, next, m->comm, NULL));
  EXPECT_INT("a sum before ncclGroupEnd", 1, sums[1]);
  TRY(GroupEnd, ());
  for (int i = 0; i < kGroupCalls; ++i) EXPECT_INT("a sum of a group", i * m->size, sums[i]);
  EXPECT_INT("ncclRecv beside collectives", previous + 1, received);
}

/* Checks that a simulated group executes nothing, and that a bad ncclSimInfo_t is refused. */
static void simulate(const Member* m) {
  ncclSimInfo_t info = NCCL_SIM_INFO_INITIALIZER;
  int32_t value = 7;
  info.estimatedTime = 3;
  TRY(GroupStart, ());
  TRY(AllReduce, (&value, &value, 1, ncclInt32, ncclSum, m->comm, NULL));
  TRY(GroupSimulateEnd, (&info));
  EXPECT_INT("ncclGroupSimulateEnd's estimate is a time", 1,
             info.estimatedTime > 0 && info.estimatedTime < 1000);
  EXPECT_INT("value after ncclGroupSimulateEnd", 7, value);
  TRY(GroupStart, ());
  info.magic = 0;
  EXPECT(ncclInvalidArgument, GroupSimulateEnd, (&info));
  EXPECT_WORD("ncclSimInfo_t");
  EXPECT(ncclInvalidUsage, GroupSimulateEnd, (&info));
  EXPECT(ncclInvalidUsage, GroupEnd, ());
  EXPECT_WORD("ncclGroupStart");
}

/* Checks that a group with a refused call returns that error at its end and executes nothing. */
static void refuse_in_group(const Member* m) {
  int32_t value = 7;
  TRY(GroupStart, ());
  TRY(AllReduce, (&value, &value, 1, ncclInt32, ncclSum, m->comm, NULL));
  EXPECT(ncclInvalidArgument, Send, (&value, 1, ncclInt32, m->size, m->comm, NULL));
  EXPECT(ncclInvalidArgument, GroupEnd, ());
  EXPECT_WORD("peer");
  EXPECT_INT("value after a refused group", 7, value);
}

void check_sum(ncclComm_t comm, int size) {
  int32_t value = 1;
  TRY(AllReduce, (&value, &value, 1, ncclInt32, ncclSum, comm, NULL));
  EXPECT_INT("sum of ones", size, value);
}

void check_point_to_point(const Member* m) {
  for (int hop = 0; hop < m->size; ++hop) send_around(m, hop);
  send_to_all(m);
  send_in_turn(m);
  group_all_sorts(m);
  simulate(m);
  refuse_in_group(m);
  check_sum(m->comm, m->size);
}
