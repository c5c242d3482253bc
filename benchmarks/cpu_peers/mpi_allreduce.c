/* SPDX-FileCopyrightText: The Oriel authors */
/* SPDX-License-Identifier: Apache-2.0 */
/* Measures MPI_Allreduce of floats, a round at a time, on request. Every rank sleeps in read() on
   a FIFO of its own between rounds, so that an idle MPI takes no time from whoever is measured
   meanwhile (a rank that waited inside MPI would spin).

   mpi_allreduce DIRECTORY MOST_BYTES: rank r reads lines "BYTES CALLS SETS SEED" from
   DIRECTORY/request.r; rank 0 answers each on DIRECTORY/answer with "MICROSECONDS WRONG", the
   slowest rank's time per call and the number of wrong elements over all ranks. Ends when the
   requests end. What is timed is what oriel-perf times: one untimed call after a barrier, then the
   loop, out of place, over SETS pairs of buffers from malloc. */
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

/* The finaliser of splitmix64, as in oriel-perf. */
static uint64_t scramble(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

/* Multiples of 2^-23 in [-1, 1): exact in a float, and their sums exact in a double. */
static float input_at(uint64_t key, size_t index) {
  const int64_t drawn = (int64_t)(scramble(key + index * 0x9e3779b97f4a7c15u) >> 40);
  return (float)((double)(drawn - (1 << 23)) * 0x1p-23);
}

static uint64_t key_of(uint64_t seed, int set, int rank) {
  return scramble((seed * 64 + (uint64_t)set) * 0x9e3779b97f4a7c15u + (uint64_t)rank + 1);
}

static long long count_wrong(const float* out, size_t count, uint64_t seed, int set, int ranks) {
  long long wrong = 0;
  uint64_t keys[64];
  for (int rank = 0; rank < ranks; ++rank) keys[rank] = key_of(seed, set, rank);
  for (size_t i = 0; i < count; ++i) {
    double sum = 0, size = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      const double value = input_at(keys[rank], i);
      sum += value;
      size += value < 0 ? -value : value;
    }
    const double error = out[i] > sum ? out[i] - sum : sum - out[i];
    if (!(error <= size * ranks * 0x1p-24)) ++wrong;
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
  int rank, ranks;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  const size_t count = bytes / sizeof(float);
  for (int set = 0; set < sets; ++set) {
    const uint64_t key = key_of(seed, set, rank);
    float* send = at(b->send, b, set);
    for (size_t i = 0; i < count; ++i) send[i] = input_at(key, i);
    memset(at(b->receive, b, set), 0xff, bytes); /* NaN */
  }
  MPI_Barrier(MPI_COMM_WORLD);
  MPI_Allreduce(b->send, b->receive, (int)count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  const double start = now_us();
  for (int call = 0; call < calls; ++call) {
    const int set = call % sets;
    MPI_Allreduce(at(b->send, b, set), at(b->receive, b, set), (int)count, MPI_FLOAT, MPI_SUM,
                  MPI_COMM_WORLD);
  }
  const double mine = (now_us() - start) / calls;
  long long wrong = 0, all_wrong = 0;
  for (int set = 0; set < sets; ++set)
    wrong += count_wrong(at(b->receive, b, set), count, seed, set, ranks);
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
  int rank, ranks;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  if (argc != 3 || ranks > 64) {
    fprintf(stderr, "mpi_allreduce DIRECTORY MOST_BYTES, on at most 64 ranks\n");
    MPI_Abort(MPI_COMM_WORLD, 2);
  }
  /* Rotating buffers of every size take at most what two of the largest take, or 128 MiB. */
  const size_t most = strtoull(argv[2], NULL, 10);
  const size_t arena = 2 * most + ((size_t)160 << 20);
  struct Buffers buffers = {malloc(arena), malloc(arena), 0};
  if (buffers.send == NULL || buffers.receive == NULL) MPI_Abort(MPI_COMM_WORLD, 3);
  memset(buffers.send, 0, arena);
  memset(buffers.receive, 0, arena);
  FILE* requests = open_in(argv[1], "request", rank, "r");
  FILE* answer = rank == 0 ? open_in(argv[1], "answer", -1, "w") : NULL;
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
