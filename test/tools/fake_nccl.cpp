// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0

// A small library with NCCL's interface for ranks on one host: all-reduce of ints and floats
// through a shared file. It tests the tools without the real library. Environment variables inject
// faults.
//
//   FAKE_NCCL_WRONG_AT=i: adds one to element i of rank 0's results.
//   FAKE_NCCL_OTHER_BITS_AT=i: flips the lowest bit of element i of rank 0's results.
//   FAKE_NCCL_WRITE_PAST=1: writes one byte behind the output on rank 0.
//   FAKE_NCCL_CHANGE_INPUT=1: changes the first input element on rank 0.
//   FAKE_NCCL_SKIP_LAST=1: leaves the last element of rank 0's output unwritten.
//   FAKE_NCCL_DELAY_US=t: makes each call last at least t microseconds.
//   FAKE_NCCL_RANK=r: the rank for the following faults.
//   FAKE_NCCL_DIE_AT_CALL=k: kills that rank at its k-th all-reduce.
//   FAKE_NCCL_HANG_AT_CALL=k: blocks that rank at its k-th all-reduce.
//   FAKE_NCCL_FAIL_AT_CALL=k: returns an error at the k-th all-reduce.
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string>
#include <type_traits>

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include "nccl.h"

namespace {

constexpr std::size_t kMostRanks = 8;
constexpr std::size_t kChunk = 1 << 20;

struct Shared {
  std::atomic<std::uint32_t> arrived{0};
  std::atomic<std::uint32_t> generation{0};
  alignas(64) unsigned char data[kMostRanks][kChunk];
};

long setting(const char* name, long otherwise) {
  const char* text = std::getenv(name);
  return text != nullptr ? std::strtol(text, nullptr, 10) : otherwise;
}

}  // namespace

struct ncclComm {
  int rank;
  int ranks;
  Shared* shared;
  long calls;
  double scalar;

  void barrier() {
    const std::uint32_t generation = shared->generation.load();
    if (shared->arrived.fetch_add(1) + 1 == static_cast<std::uint32_t>(ranks)) {
      shared->arrived.store(0);
      shared->generation.store(generation + 1);
      return;
    }
    while (shared->generation.load() == generation) sched_yield();
  }
};

namespace {

template <typename T>
T combine(T a, T b, ncclRedOp_t op) {
  if (op == ncclMax) return a > b ? a : b;
  if (op == ncclMin) return a < b ? a : b;
  // Integers wrap.
  using Wide = std::conditional_t<std::is_integral_v<T>, std::uint64_t, T>;
  const auto wide_a = static_cast<Wide>(a);
  const auto wide_b = static_cast<Wide>(b);
  return static_cast<T>(op == ncclProd ? wide_a * wide_b : wide_a + wide_b);
}

template <typename T>
void reduce_chunk(ncclComm* comm, const T* in, T* out, std::size_t count, ncclRedOp_t op) {
  std::memcpy(comm->shared->data[comm->rank], in, count * sizeof(T));
  if (op >= ncclNumOps) {
    auto* mine = reinterpret_cast<T*>(comm->shared->data[comm->rank]);
    for (std::size_t i = 0; i < count; ++i)
      mine[i] = combine(mine[i], static_cast<T>(comm->scalar), ncclProd);
  }
  comm->barrier();
  for (std::size_t i = 0; i < count; ++i) {
    T sum = reinterpret_cast<const T*>(comm->shared->data[0])[i];
    for (int rank = 1; rank < comm->ranks; ++rank)
      sum = combine(sum, reinterpret_cast<const T*>(comm->shared->data[rank])[i], op);
    out[i] = op == ncclAvg ? static_cast<T>(sum / static_cast<T>(comm->ranks)) : sum;
  }
  comm->barrier();
}

template <typename T>
void all_reduce(ncclComm* comm, const void* send, void* receive, std::size_t count,
                ncclRedOp_t op) {
  const auto* in = static_cast<const T*>(send);
  auto* out = static_cast<T*>(receive);
  const bool skip = comm->rank == 0 && setting("FAKE_NCCL_SKIP_LAST", 0) != 0 && count > 0;
  T kept{};
  if (skip) kept = out[count - 1];
  constexpr std::size_t kPerChunk = kChunk / sizeof(T);
  for (std::size_t done = 0; done < count; done += kPerChunk)
    reduce_chunk(comm, in + done, out + done, count - done < kPerChunk ? count - done : kPerChunk,
                 op);
  if (skip) out[count - 1] = kept;
  const long wrong_at = setting("FAKE_NCCL_WRONG_AT", -1);
  if (comm->rank == 0 && wrong_at >= 0 && static_cast<std::size_t>(wrong_at) < count)
    out[wrong_at] = static_cast<T>(out[wrong_at] + 1);
  const long other_bits_at = setting("FAKE_NCCL_OTHER_BITS_AT", -1);
  if (comm->rank == 0 && other_bits_at >= 0 && static_cast<std::size_t>(other_bits_at) < count)
    reinterpret_cast<unsigned char*>(out + other_bits_at)[0] ^= 1;
  if (comm->rank != 0 || count == 0) return;
  if (setting("FAKE_NCCL_WRITE_PAST", 0) != 0) reinterpret_cast<unsigned char*>(out + count)[0] = 7;
  if (setting("FAKE_NCCL_CHANGE_INPUT", 0) != 0)
    static_cast<T*>(const_cast<void*>(send))[0] = static_cast<T>(3);
}

void misbehave(const ncclComm* comm) {
  if (comm->rank != setting("FAKE_NCCL_RANK", -1)) return;
  if (comm->calls == setting("FAKE_NCCL_DIE_AT_CALL", -1)) raise(SIGKILL);
  if (comm->calls == setting("FAKE_NCCL_HANG_AT_CALL", -1))
    for (;;) pause();
}

}  // namespace

ncclResult_t ncclGetVersion(int* version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}
ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  std::memset(id->internal, 0, sizeof id->internal);
  const auto now = std::chrono::steady_clock::now().time_since_epoch().count();
  std::snprintf(id->internal, sizeof id->internal, "/tmp/fake-nccl-%d-%lld", getpid(),
                static_cast<long long>(now));
  return ncclSuccess;
}
const char* ncclGetErrorString(ncclResult_t) {
  return "fake error";
}
const char* ncclGetLastError(ncclComm_t) {
  return "as the test asked";
}

ncclResult_t ncclCommInitRank(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank) {
  const int fd = open(id.internal, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0 || ftruncate(fd, sizeof(Shared)) != 0) return ncclSystemError;
  void* memory = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  if (memory == MAP_FAILED) return ncclSystemError;
  // A new file is all zeros, the initial value of both atomics.
  *comm = new ncclComm{rank, ranks, static_cast<Shared*>(memory), 0, 1};
  (*comm)->barrier();
  unlink(id.internal);
  return ncclSuccess;
}
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  munmap(comm->shared, sizeof(Shared));
  delete comm;
  return ncclSuccess;
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t, ncclResult_t* result) {
  *result = ncclSuccess;
  return ncclSuccess;
}
ncclResult_t ncclMemAlloc(void** out, size_t size) {
  *out = std::malloc(size);
  return *out != nullptr ? ncclSuccess : ncclSystemError;
}
ncclResult_t ncclMemFree(void* memory) {
  std::free(memory);
  return ncclSuccess;
}
ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void* buffer, size_t, ncclWindow_t* window,
                                    int) {
  comm->barrier();
  *window = static_cast<ncclWindow_t>(buffer);
  return ncclSuccess;
}
ncclResult_t ncclCommWindowDeregister(ncclComm_t, ncclWindow_t) {
  return ncclSuccess;
}
ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t* op, void* scalar, ncclDataType_t type,
                                      ncclScalarResidence_t, ncclComm_t comm) {
  comm->scalar = type == ncclFloat ? *static_cast<float*>(scalar)
                                   : static_cast<double>(*static_cast<std::int32_t*>(scalar));
  *op = static_cast<ncclRedOp_t>(ncclNumOps);
  return type == ncclFloat || type == ncclInt ? ncclSuccess : ncclInvalidArgument;
}
ncclResult_t ncclRedOpDestroy(ncclRedOp_t, ncclComm_t) {
  return ncclSuccess;
}

ncclResult_t ncclAllReduce(const void* send, void* receive, size_t count, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  if (stream != nullptr) return ncclInvalidArgument;
  ++comm->calls;
  misbehave(comm);
  if (comm->rank == setting("FAKE_NCCL_RANK", -1) &&
      comm->calls == setting("FAKE_NCCL_FAIL_AT_CALL", -1))
    return ncclInternalError;
  const auto start = std::chrono::steady_clock::now();
  switch (type) {
    case ncclInt8:
      all_reduce<std::int8_t>(comm, send, receive, count, op);
      break;
    case ncclInt32:
      all_reduce<std::int32_t>(comm, send, receive, count, op);
      break;
    case ncclUint64:
      all_reduce<std::uint64_t>(comm, send, receive, count, op);
      break;
    case ncclFloat32:
      all_reduce<float>(comm, send, receive, count, op);
      break;
    case ncclFloat64:
      all_reduce<double>(comm, send, receive, count, op);
      break;
    default:
      return ncclInvalidArgument;
  }
  const std::chrono::microseconds least(setting("FAKE_NCCL_DELAY_US", 0));
  while (std::chrono::steady_clock::now() - start < least) {
  }
  return ncclSuccess;
}
