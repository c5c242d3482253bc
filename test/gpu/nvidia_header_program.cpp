// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
// 1.32: program as a user of NCCL 2.28.9 writes it. Calls functions of start and end, windows,
// all-reduces, factors and groups. It compiles against NVIDIA's nccl.h and against Oriel's, and
// uses no other header of Oriel. It runs one rank alone, then two ranks as communicators of one
// thread, then two ranks as threads. The ranks share a GPU if there is only one, which NCCL itself
// would refuse. Exit status: 0 on success, 77 without a GPU; otherwise a line says what failed.
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include <cuda_runtime_api.h>

#ifdef PROGRAM_NCCL_HEADER
#include PROGRAM_NCCL_HEADER
#else
#include <nccl.h>
#endif

namespace {

constexpr int kRanks = 2;

[[noreturn]] void fail(int line, const std::string& what) {
  std::fprintf(stderr, "FAIL: line %d: %s: %s\n", line, what.c_str(), ncclGetLastError(nullptr));
  std::fflush(stderr);
  std::_Exit(1);
}
#define REQUIRE(condition) \
  if (!(condition)) fail(__LINE__, #condition)
#define NCCL(call) REQUIRE((call) == ncclSuccess)
#define CUDA(call) REQUIRE((call) == cudaSuccess)

int device_of(int rank) {
  int devices = 0;
  CUDA(cudaGetDeviceCount(&devices));
  return rank % devices;
}

/// One rank's buffers and stream.
struct Side {
  explicit Side(int rank_in) : rank(rank_in) {
    CUDA(cudaSetDevice(device_of(rank)));
    CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    NCCL(ncclMemAlloc(&window_memory, kBytes));
    CUDA(cudaMalloc(&plain_memory, kBytes));
  }
  void end() {
    CUDA(cudaSetDevice(device_of(rank)));
    CUDA(cudaFree(plain_memory));
    NCCL(ncclMemFree(window_memory));
    CUDA(cudaStreamDestroy(stream));
  }
  /// Waits for the stream and polls for asynchronous errors, as NCCL programs do.
  void wait(ncclComm_t comm) const {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    for (;;) {
      const cudaError_t state = cudaStreamQuery(stream);
      if (state == cudaSuccess) return;
      REQUIRE(state == cudaErrorNotReady);
      ncclResult_t error = ncclInternalError;
      NCCL(ncclCommGetAsyncError(comm, &error));
      REQUIRE(error == ncclSuccess);
      REQUIRE(std::chrono::steady_clock::now() < end);
      std::this_thread::yield();
    }
  }
  template <class T>
  void fill(void* to, const std::vector<T>& values) const {
    CUDA(cudaMemcpyAsync(to, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice,
                         stream));
    CUDA(cudaStreamSynchronize(stream));
  }
  template <class T>
  std::vector<T> read(const void* from, std::size_t count) const {
    std::vector<T> values(count);
    CUDA(cudaSetDevice(device_of(rank)));  // only the device of window memory can copy it
    CUDA(cudaMemcpyAsync(values.data(), from, count * sizeof(T), cudaMemcpyDeviceToHost, stream));
    CUDA(cudaStreamSynchronize(stream));
    return values;
  }

  static constexpr std::size_t kBytes = std::size_t{4} << 20;
  int rank;
  cudaStream_t stream = nullptr;
  void* window_memory = nullptr;
  void* plain_memory = nullptr;
};

/// Checks functions under both names (nccl and pnccl).
void check_queries() {
  int version = 0;
  NCCL(ncclGetVersion(&version));
  REQUIRE(version == NCCL_VERSION_CODE);
  version = 0;
  NCCL(pncclGetVersion(&version));
  REQUIRE(version == NCCL_VERSION(2, 28, 9));
  for (const ncclResult_t result :
       {ncclSuccess, ncclUnhandledCudaError, ncclSystemError, ncclInternalError,
        ncclInvalidArgument, ncclInvalidUsage, ncclRemoteError, ncclInProgress}) {
    REQUIRE(std::strlen(ncclGetErrorString(result)) > 0);
    REQUIRE(std::strcmp(ncclGetErrorString(result), pncclGetErrorString(result)) == 0);
  }
  REQUIRE(ncclCommCount(nullptr, &version) == ncclInvalidArgument);
  REQUIRE(std::strlen(ncclGetLastError(nullptr)) > 0);
  REQUIRE(std::strlen(pncclGetLastError(nullptr)) > 0);
  const void* const twins[] = {(const void*)&pncclGetUniqueId,
                               (const void*)&pncclCommInitRank,
                               (const void*)&pncclCommInitRankConfig,
                               (const void*)&pncclCommInitAll,
                               (const void*)&pncclCommFinalize,
                               (const void*)&pncclCommDestroy,
                               (const void*)&pncclCommAbort,
                               (const void*)&pncclCommGetAsyncError,
                               (const void*)&pncclCommCount,
                               (const void*)&pncclCommCuDevice,
                               (const void*)&pncclCommUserRank,
                               (const void*)&pncclMemAlloc,
                               (const void*)&pncclMemFree,
                               (const void*)&pncclCommWindowRegister,
                               (const void*)&pncclCommWindowDeregister,
                               (const void*)&pncclRedOpCreatePreMulSum,
                               (const void*)&pncclRedOpDestroy,
                               (const void*)&pncclAllReduce,
                               (const void*)&pncclGroupStart,
                               (const void*)&pncclGroupEnd};
  for (const void* const twin : twins) REQUIRE(twin != nullptr);
}

void check_communicator(ncclComm_t comm, int rank) {
  int value = -1;
  NCCL(ncclCommCount(comm, &value));
  REQUIRE(value == kRanks);
  NCCL(ncclCommUserRank(comm, &value));
  REQUIRE(value == rank);
  NCCL(ncclCommCuDevice(comm, &value));
  REQUIRE(value == device_of(rank));
}

/// Checks an all-reduce of threes (rank 0) and fours (rank 1) in a group against expected[0].
template <class T>
void check_values(std::vector<Side>& sides, ncclComm_t* comms, ncclDataType_t type, ncclRedOp_t op,
                  const std::vector<T>& expected) {
  constexpr std::size_t kCount = 1001;
  for (Side& side : sides) {
    CUDA(cudaSetDevice(device_of(side.rank)));
    side.fill(side.window_memory, std::vector<T>(kCount, static_cast<T>(side.rank == 0 ? 3 : 4)));
  }
  NCCL(ncclGroupStart());
  for (Side& side : sides) {
    NCCL(ncclAllReduce(side.window_memory, side.plain_memory, kCount, type, op, comms[side.rank],
                       side.stream));
  }
  NCCL(ncclGroupEnd());
  for (Side& side : sides) {
    side.wait(comms[side.rank]);
    for (const T value : side.read<T>(side.plain_memory, kCount)) REQUIRE(value == expected[0]);
  }
}

template <class T>
void check_type(std::vector<Side>& sides, ncclComm_t* comms, ncclDataType_t type) {
  check_values<T>(sides, comms, type, ncclSum, {T(7)});
  check_values<T>(sides, comms, type, ncclProd, {T(12)});
  check_values<T>(sides, comms, type, ncclMax, {T(4)});
  check_values<T>(sides, comms, type, ncclMin, {T(3)});
  check_values<T>(sides, comms, type, ncclAvg, {static_cast<T>(3.5)});
}

/// Checks types that C++ lacks. All elements are `one`, the bits of 1, and so are all results.
template <class Bits>
void check_bits(std::vector<Side>& sides, ncclComm_t* comms, ncclDataType_t type, Bits one) {
  constexpr std::size_t kCount = 999;
  for (Side& side : sides) {
    CUDA(cudaSetDevice(device_of(side.rank)));
    side.fill(side.window_memory, std::vector<Bits>(kCount, one));
  }
  for (const ncclRedOp_t op : {ncclMax, ncclMin, ncclProd, ncclAvg}) {
    NCCL(ncclGroupStart());
    for (Side& side : sides) {
      NCCL(ncclAllReduce(side.window_memory, side.window_memory, kCount, type, op, comms[side.rank],
                         side.stream));
    }
    NCCL(ncclGroupEnd());
    for (Side& side : sides) {
      side.wait(comms[side.rank]);
      for (const Bits value : side.read<Bits>(side.window_memory, kCount)) REQUIRE(value == one);
    }
  }
}

void check_types(std::vector<Side>& sides, ncclComm_t* comms) {
  check_type<std::int8_t>(sides, comms, ncclInt8);
  check_type<std::int8_t>(sides, comms, ncclChar);
  check_type<std::uint8_t>(sides, comms, ncclUint8);
  check_type<std::int32_t>(sides, comms, ncclInt32);
  check_type<std::int32_t>(sides, comms, ncclInt);
  check_type<std::uint32_t>(sides, comms, ncclUint32);
  check_type<std::int64_t>(sides, comms, ncclInt64);
  check_type<std::uint64_t>(sides, comms, ncclUint64);
  check_type<float>(sides, comms, ncclFloat32);
  check_type<float>(sides, comms, ncclFloat);
  check_type<double>(sides, comms, ncclFloat64);
  check_type<double>(sides, comms, ncclDouble);
  check_bits<std::uint16_t>(sides, comms, ncclFloat16, 0x3c00);
  check_bits<std::uint16_t>(sides, comms, ncclHalf, 0x3c00);
  check_bits<std::uint16_t>(sides, comms, ncclBfloat16, 0x3f80);
  check_bits<std::uint8_t>(sides, comms, ncclFloat8e4m3, 0x38);
  check_bits<std::uint8_t>(sides, comms, ncclFloat8e5m2, 0x3c);
  REQUIRE(ncclNumTypes == 12 && ncclNumOps == 5);
}

/// Runs two communicators of one thread, with windows.
void run_in_one_thread() {
  const int devices[kRanks] = {device_of(0), device_of(1)};
  std::vector<Side> sides{Side(0), Side(1)};
  ncclComm_t comms[kRanks] = {};
  NCCL(ncclCommInitAll(comms, kRanks, devices));
  for (int rank = 0; rank < kRanks; ++rank) check_communicator(comms[rank], rank);
  check_types(sides, comms);  // without registered windows
  ncclWindow_t windows[kRanks] = {};
  NCCL(ncclGroupStart());
  for (Side& side : sides) {
    NCCL(ncclCommWindowRegister(comms[side.rank], side.window_memory, Side::kBytes,
                                &windows[side.rank], NCCL_WIN_COLL_SYMMETRIC));
  }
  NCCL(ncclGroupEnd());
  check_types(sides, comms);
  for (int rank = 0; rank < kRanks; ++rank) {
    REQUIRE(windows[rank] != nullptr);
    NCCL(ncclCommWindowDeregister(comms[rank], windows[rank]));
  }
  NCCL(ncclGroupStart());
  for (ncclComm_t comm : comms) NCCL(ncclCommFinalize(comm));
  NCCL(ncclGroupEnd());
  for (ncclComm_t comm : comms) NCCL(ncclCommDestroy(comm));
  for (Side& side : sides) side.end();
}

/// Checks a sum in which each rank has its own factor: 2 x 10 + 3 x 10.
void check_premul_sum(const Side& side, ncclComm_t comm, ncclScalarResidence_t residence) {
  float factor = static_cast<float>(2 + side.rank);
  auto* const on_device = static_cast<float*>(side.plain_memory) + 1000;
  side.fill(on_device, std::vector<float>{factor});
  side.fill(side.plain_memory, std::vector<float>(10, 10.0f));
  ncclRedOp_t op = ncclNumOps;
  NCCL(ncclRedOpCreatePreMulSum(&op, residence == ncclScalarDevice ? on_device : &factor,
                                ncclFloat32, residence, comm));
  REQUIRE(op >= ncclNumOps && op <= ncclMaxRedOp);
  NCCL(ncclAllReduce(side.plain_memory, side.plain_memory, 10, ncclFloat32, op, comm, side.stream));
  NCCL(ncclRedOpDestroy(op, comm));
  side.wait(comm);
  for (const float value : side.read<float>(side.plain_memory, 10)) REQUIRE(value == 50.0f);
}

ncclConfig_t config_of(bool blocking) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  REQUIRE(config.blocking == NCCL_CONFIG_UNDEF_INT && config.netName == NCCL_CONFIG_UNDEF_PTR);
  config.blocking = blocking ? 1 : 0;
  config.minCTAs = 1;
  config.maxCTAs = 16;
  config.commName = "two threads";
  return config;
}

/// Barrier of all rank threads.
void meet() {
  static std::atomic<int> arrived{0};
  const int goal = (arrived.fetch_add(1) / kRanks + 1) * kRanks;
  while (arrived < goal) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

/// Runs one rank in its own thread, with blocking and non-blocking configurations.
void run_as_thread(int rank, ncclUniqueId blocking_id, ncclUniqueId other_id) {
  Side side(rank);
  ncclConfig_t config = config_of(true);
  ncclComm_t comm = NCCL_COMM_NULL;
  NCCL(ncclCommInitRankConfig(&comm, kRanks, blocking_id, rank, &config));
  check_communicator(comm, rank);
  check_premul_sum(side, comm, ncclScalarHostImmediate);
  check_premul_sum(side, comm, ncclScalarDevice);
  ncclWindow_t window = nullptr;
  NCCL(ncclCommWindowRegister(comm, side.window_memory, NCCL_WIN_REQUIRED_ALIGNMENT, &window,
                              NCCL_WIN_DEFAULT));
  NCCL(ncclCommWindowDeregister(comm, window));
  NCCL(ncclCommFinalize(comm));
  NCCL(ncclCommDestroy(comm));

  config = config_of(false);
  const ncclResult_t started = ncclCommInitRankConfig(&comm, kRanks, other_id, rank, &config);
  REQUIRE(started == ncclSuccess || started == ncclInProgress);
  ncclResult_t state = ncclInProgress;
  for (int i = 0; i < 20'000 && state == ncclInProgress; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    NCCL(ncclCommGetAsyncError(comm, &state));
  }
  REQUIRE(state == ncclSuccess);
  check_premul_sum(side, comm, ncclScalarHostImmediate);
  meet();  // an abort would end the other rank's calls in flight
  NCCL(ncclCommAbort(comm));
  meet();  // freeing memory may wait for the whole GPU
  side.end();
}

void run_as_threads() {
  ncclUniqueId ids[2];
  REQUIRE(sizeof ids[0] == NCCL_UNIQUE_ID_BYTES);
  for (ncclUniqueId& id : ids) NCCL(ncclGetUniqueId(&id));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back(run_as_thread, rank, ids[0], ids[1]);
  }
  for (std::thread& thread : threads) thread.join();
}

/// Runs a communicator of one rank, made without a configuration.
void run_alone() {
  ncclUniqueId id;
  NCCL(ncclGetUniqueId(&id));
  Side side(0);
  ncclComm_t comm = nullptr;
  NCCL(ncclCommInitRank(&comm, 1, id, 0));
  side.fill(side.plain_memory, std::vector<float>(5, 2.5f));
  NCCL(ncclAllReduce(side.plain_memory, side.window_memory, 5, ncclFloat, ncclSum, comm,
                     side.stream));
  side.wait(comm);
  for (const float value : side.read<float>(side.window_memory, 5)) REQUIRE(value == 2.5f);
  NCCL(ncclCommDestroy(comm));
  side.end();
}

}  // namespace

int main() {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::printf("skipped: needs a GPU\n");
    return 77;
  }
  check_queries();
  run_alone();
  run_in_one_thread();
  run_as_threads();
  std::printf("a program of NCCL %d's header runs on %d GPU(s)\n", NCCL_VERSION_CODE, devices);
  return 0;
}
