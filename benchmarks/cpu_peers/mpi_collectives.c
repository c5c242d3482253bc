/* SPDX-FileCopyrightText: The Oriel authors */
/* SPDX-License-Identifier: Apache-2.0 */
/* Measures an MPI collective with floats, one round per request. Between rounds every rank sleeps
   in read() on its own FIFO. An idle MPI thus takes no processor time from other measurements; a
   rank that waited inside MPI would spin.

   mpi_collectives COLLECTIVE DIRECTORY MOST_BYTES RANKS: COLLECTIVE is named as in oriel-perf.
   BYTES counts the larger buffer, as in oriel-perf; the root is rank 0. Rank r reads lines "BYTES
   CALLS SETS SEED" from DIRECTORY/request.r. Rank 0 answers each on DIRECTORY/answer with
   "MICROSECONDS WRONG": the slowest rank's time per call, and the number of wrong elements over all
   ranks. The program ends when the requests end. It times the same as oriel-perf: one untimed call
   after a barrier, then the loop, out of place, over SETS pairs of buffers from malloc. */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { kPage = 4096 };

static double now_us(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

/* Applies the finaliser of splitmix64, as oriel-perf does. */
static uint64_t scramble(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

/* Returns a multiple of 2^-23 in [-1, 1): exact in a float; sums are exact in a double. */
static float input_at(uint64_t key, size_t index) {
  const int64_t drawn = (int64_t)(scramble(key + index * 0x9e3779b97f4a7c15u) >> 40);
  return (float)((double)(drawn - (1 << 23)) * 0x1p-23);
}

static uint64_t key_of(uint64_t seed, int set, int rank) {
  return scramble((seed * 64 + (uint64_t)set) * 0x9e3779b97f4a7c15u + (uint64_t)rank + 1);
}

enum Collective {
  kAllReduce,
  kAllGather,
  kReduceScatter,
  kAllToAll,
  kBroadcast,
  kReduce,
  kGather,
  kScatter,
  kSendRecv,
  kCollectives
};
static const char* const kNames[kCollectives] = {"all_reduce", "all_gather", "reduce_scatter",
                                                 "alltoall",   "broadcast",  "reduce",
                                                 "gather",     "scatter",    "sendrecv"};
static enum Collective collective;
static int rank, ranks;

static int has_blocks(void) {
  return collective == kAllGather || collective == kReduceScatter || collective == kAllToAll ||
         collective == kGather || collective == kScatter;
}

/* Returns the elements of a block if the larger buffer has `count` elements. */
static size_t block_of(size_t count) {
  return has_blocks() ? count / (size_t)ranks : count;
}

static void call(const float* send, float* receive, size_t count) {
  const int block = (int)block_of(count);
  const MPI_Comm world = MPI_COMM_WORLD;
  switch (collective) {
    case kAllReduce:
      MPI_Allreduce(send, receive, block, MPI_FLOAT, MPI_SUM, world);
      break;
    case kAllGather:
      MPI_Allgather(send, block, MPI_FLOAT, receive, block, MPI_FLOAT, world);
      break;
    case kReduceScatter:
      MPI_Reduce_scatter_block(send, receive, block, MPI_FLOAT, MPI_SUM, world);
      break;
    case kAllToAll:
      MPI_Alltoall(send, block, MPI_FLOAT, receive, block, MPI_FLOAT, world);
      break;
    case kBroadcast: /* in place, which saves the root's copy */
      MPI_Bcast(rank == 0 ? (float*)send : receive, block, MPI_FLOAT, 0, world);
      break;
    case kReduce:
      MPI_Reduce(send, receive, block, MPI_FLOAT, MPI_SUM, 0, world);
      break;
    case kGather:
      MPI_Gather(send, block, MPI_FLOAT, receive, block, MPI_FLOAT, 0, world);
      break;
    case kScatter:
      MPI_Scatter(send, block, MPI_FLOAT, receive, block, MPI_FLOAT, 0, world);
      break;
    default:
      MPI_Sendrecv(send, block, MPI_FLOAT, (rank + 1) % ranks, 0, receive, block, MPI_FLOAT,
                   (rank + ranks - 1) % ranks, 0, world, MPI_STATUS_IGNORE);
  }
}

/* Returns the elements that this rank receives if the larger buffer has `count` elements. */
static size_t received(size_t count) {
  const int root_only = collective == kReduce || collective == kGather;
  if ((root_only && rank != 0) || (collective == kBroadcast && rank == 0)) return 0;
  const int one_block = collective == kReduceScatter || collective == kScatter;
  return one_block ? block_of(count) : block_of(count) * (has_blocks() ? (size_t)ranks : 1);
}

/* Returns the rank from which element `i` of a copied result comes; stores its index there. */
static int source_of(size_t i, size_t block, size_t* index) {
  *index = i;
  switch (collective) {
    case kAllGather:
    case kGather:
      *index = i % block;
      return (int)(i / block);
    case kAllToAll:
      *index = (size_t)rank * block + i % block;
      return (int)(i / block);
    case kScatter:
      *index = (size_t)rank * block + i;
      return 0;
    case kBroadcast:
      return 0;
    default:
      return (rank + ranks - 1) % ranks;
  }
}

static int is_sum_wrong(float out, const uint64_t* keys, size_t index) {
  double sum = 0, size = 0;
  for (int one = 0; one < ranks; ++one) {
    const double value = input_at(keys[one], index);
    sum += value;
    size += value < 0 ? -value : value;
  }
  const double error = out > sum ? out - sum : sum - out;
  return !(error <= size * ranks * 0x1p-24);
}

static long long count_wrong(const float* out, size_t count, uint64_t seed, int set) {
  long long wrong = 0;
  uint64_t keys[64];
  const int sums =
      collective == kAllReduce || collective == kReduce || collective == kReduceScatter;
  const size_t block = block_of(count);
  const size_t first = collective == kReduceScatter ? (size_t)rank * block : 0;
  for (int one = 0; one < ranks; ++one) keys[one] = key_of(seed, set, one);
  for (size_t i = 0; i < received(count); ++i) {
    if (sums) {
      wrong += is_sum_wrong(out[i], keys, first + i);
    } else {
      size_t index;
      const int source = source_of(i, block, &index);
      wrong += out[i] != input_at(keys[source], index);
    }
  }
  return wrong;
}

struct Buffers {
  char* send;
  char* receive;
  size_t stride;
};

static float* at(char* base, const struct Buffers* b, int set) {
  return (float*)(void*)(base + (size_t)set * b->stride);
}

static void measure(const struct Buffers* b, size_t bytes, int calls, int sets, uint64_t seed,
                    FILE* answer) {
  const size_t count = bytes / sizeof(float);
  for (int set = 0; set < sets; ++set) {
    const uint64_t key = key_of(seed, set, rank);
    float* send = at(b->send, b, set);
    for (size_t i = 0; i < count; ++i) send[i] = input_at(key, i);
    memset(at(b->receive, b, set), 0xff, bytes); /* NaN */
  }
  MPI_Barrier(MPI_COMM_WORLD);
  call(at(b->send, b, 0), at(b->receive, b, 0), count);
  const double start = now_us();
  for (int i = 0; i < calls; ++i)
    call(at(b->send, b, i % sets), at(b->receive, b, i % sets), count);
  const double mine = (now_us() - start) / calls;
  long long wrong = 0, all_wrong = 0;
  for (int set = 0; set < sets; ++set)
    wrong += count_wrong(at(b->receive, b, set), count, seed, set);
  double slowest = 0;
  MPI_Reduce(&mine, &slowest, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
  MPI_Reduce(&wrong, &all_wrong, 1, MPI_LONG_LONG, MPI_SUM, 0, MPI_COMM_WORLD);
  if (rank == 0) {
    fprintf(answer, "%.4f %lld\n", slowest, all_wrong);
    fflush(answer);
  }
}

static FILE* open_in(const char* directory, const char* name, int number, const char* mode) {
  char path[512];
  if (number < 0)
    snprintf(path, sizeof path, "%s/%s", directory, name);
  else
    snprintf(path, sizeof path, "%s/%s.%d", directory, name, number);
  FILE* file = fopen(path, mode);
  if (file == NULL) {
    perror(path);
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  return file;
}

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  for (collective = kAllReduce; argc == 5 && collective < kCollectives; ++collective)
    if (strcmp(argv[1], kNames[collective]) == 0) break;
  if (argc != 5 || ranks != atoi(argv[4]) || ranks > 64 || collective == kCollectives) {
    fprintf(stderr, "mpi_collectives COLLECTIVE DIRECTORY MOST_BYTES RANKS, on at most 64 ranks\n");
    MPI_Abort(MPI_COMM_WORLD, 2);
  }
  /* For every size the rotating buffers take at most two of the largest buffers, or 128 MiB. */
  const size_t most = strtoull(argv[3], NULL, 10);
  const size_t arena = 2 * most + ((size_t)160 << 20);
  struct Buffers buffers = {malloc(arena), malloc(arena), 0};
  if (buffers.send == NULL || buffers.receive == NULL) MPI_Abort(MPI_COMM_WORLD, 3);
  memset(buffers.send, 0, arena);
  memset(buffers.receive, 0, arena);
  FILE* requests = open_in(argv[2], "request", rank, "r");
  FILE* answer = rank == 0 ? open_in(argv[2], "answer", -1, "w") : NULL;
  size_t bytes;
  int calls, sets;
  unsigned long long seed;
  while (fscanf(requests, "%zu %d %d %llu", &bytes, &calls, &sets, &seed) == 4) {
    buffers.stride = (bytes + kPage - 1) / kPage * kPage + kPage;
    if (calls < 1 || sets < 1 || bytes > most || buffers.stride * (size_t)sets > arena)
      MPI_Abort(MPI_COMM_WORLD, 4);
    measure(&buffers, bytes, calls, sets, seed, answer);
  }
  MPI_Finalize();
  return 0;
}
