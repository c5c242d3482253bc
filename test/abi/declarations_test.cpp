// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <set>
#include <string>
#include <type_traits>
#include <vector>

#include <catch2/catch.hpp>

#include "nccl.h"

/// Declarations that programs built against NCCL 2.28.9 expect of the header.
namespace {

using Result = ncclResult_t;
using Comm = ncclComm_t;
using Type = ncclDataType_t;
using Stream = cudaStream_t;
using In = const void*;

struct Entry {
  std::string name;
  bool has_type;  ///< both names are declared with the expected type
};

/// Compiles only if both names are declared. Takes no address, so nothing is linked.
#define ENTRY(name, ...)                                                                       \
  Entry {                                                                                      \
#name, std::is_same_v < decltype(name), __VA_ARGS__>&& std::is_same_v < decltype(p##name), \
        __VA_ARGS__>                                                                           \
  }

/// Lists the functions that libtorch_cuda of PyTorch 2.11 imports.
std::vector<Entry> torch_entries() {
  return {
      ENTRY(ncclAllGather, Result(In, void*, size_t, Type, Comm, Stream)),
      ENTRY(ncclAllReduce, Result(In, void*, size_t, Type, ncclRedOp_t, Comm, Stream)),
      ENTRY(ncclAlltoAll, Result(In, void*, size_t, Type, Comm, Stream)),
      ENTRY(ncclBcast, Result(void*, size_t, Type, int, Comm, Stream)),
      ENTRY(ncclBroadcast, Result(In, void*, size_t, Type, int, Comm, Stream)),
      ENTRY(ncclCommAbort, Result(Comm)),
      ENTRY(ncclCommCount, Result(const Comm, int*)),
      ENTRY(ncclCommDeregister, Result(const Comm, void*)),
      ENTRY(ncclCommDestroy, Result(Comm)),
      ENTRY(ncclCommFinalize, Result(Comm)),
      ENTRY(ncclCommGetAsyncError, Result(Comm, Result*)),
      ENTRY(ncclCommInitAll, Result(Comm*, int, const int*)),
      ENTRY(ncclCommInitRank, Result(Comm*, int, ncclUniqueId, int)),
      ENTRY(ncclCommInitRankConfig, Result(Comm*, int, ncclUniqueId, int, ncclConfig_t*)),
      ENTRY(ncclCommInitRankScalable, Result(Comm*, int, int, int, ncclUniqueId*, ncclConfig_t*)),
      ENTRY(ncclCommRegister, Result(const Comm, void*, size_t, void**)),
      ENTRY(ncclCommShrink, Result(Comm, int*, int, Comm*, ncclConfig_t*, int)),
      ENTRY(ncclCommSplit, Result(Comm, int, int, Comm*, ncclConfig_t*)),
      ENTRY(ncclCommUserRank, Result(const Comm, int*)),
      ENTRY(ncclCommWindowDeregister, Result(Comm, ncclWindow_t)),
      ENTRY(ncclCommWindowRegister, Result(Comm, void*, size_t, ncclWindow_t*, int)),
      ENTRY(ncclDevCommCreate, Result(Comm, const ncclDevCommRequirements*, ncclDevComm*)),
      ENTRY(ncclDevCommDestroy, Result(Comm, const ncclDevComm*)),
      ENTRY(ncclGetErrorString, const char*(Result)),
      ENTRY(ncclGetLastError, const char*(Comm)),
      ENTRY(ncclGetUniqueId, Result(ncclUniqueId*)),
      ENTRY(ncclGetVersion, Result(int*)),
      ENTRY(ncclGroupEnd, Result()),
      ENTRY(ncclGroupSimulateEnd, Result(ncclSimInfo_t*)),
      ENTRY(ncclGroupStart, Result()),
      ENTRY(ncclMemAlloc, Result(void**, size_t)),
      ENTRY(ncclMemFree, Result(void*)),
      ENTRY(ncclRecv, Result(void*, size_t, Type, int, Comm, Stream)),
      ENTRY(ncclRedOpCreatePreMulSum,
            Result(ncclRedOp_t*, void*, Type, ncclScalarResidence_t, Comm)),
      ENTRY(ncclRedOpDestroy, Result(ncclRedOp_t, Comm)),
      ENTRY(ncclReduce, Result(In, void*, size_t, Type, ncclRedOp_t, int, Comm, Stream)),
      ENTRY(ncclReduceScatter, Result(In, void*, size_t, Type, ncclRedOp_t, Comm, Stream)),
      ENTRY(ncclSend, Result(In, size_t, Type, int, Comm, Stream)),
  };
}

/// Lists functions that other programs call and that NCCL 2.28.9 declares as well.
std::vector<Entry> other_entries() {
  return {
      ENTRY(ncclCommCuDevice, Result(const Comm, int*)),
      ENTRY(ncclCommRevoke, Result(Comm, int)),
      ENTRY(ncclGather, Result(In, void*, size_t, Type, int, Comm, Stream)),
      ENTRY(ncclResetDebugInit, void()),
      ENTRY(ncclScatter, Result(In, void*, size_t, Type, int, Comm, Stream)),
  };
}

TEST_CASE("the 38 functions that PyTorch imports are declared, with their pnccl twins",
          "[req:5.16]") {
  std::set<std::string> names;
  for (const Entry& entry : torch_entries()) {
    INFO(entry.name);
    CHECK(entry.has_type);
    names.insert(entry.name);
  }
  CHECK(names.size() == 38);
}

TEST_CASE("the functions that other programs call are declared, with their pnccl twins",
          "[req:5.16]") {
  for (const Entry& entry : other_entries()) {
    INFO(entry.name);
    CHECK(entry.has_type);
  }
}

TEST_CASE("structures have the sizes and offsets of NCCL 2.28.9", "[req:5.16]") {
  CHECK(sizeof(ncclUniqueId) == 128);
  CHECK(sizeof(ncclConfig_t) == 80);
  CHECK(offsetof(ncclConfig_t, blocking) == 16);
  CHECK(offsetof(ncclConfig_t, netName) == 32);
  CHECK(offsetof(ncclConfig_t, commName) == 48);
  CHECK(offsetof(ncclConfig_t, nvlinkCentricSched) == 76);
  CHECK(sizeof(ncclSimInfo_t) == 24);
  CHECK(offsetof(ncclSimInfo_t, magic) == 8);
  CHECK(offsetof(ncclSimInfo_t, version) == 12);
  CHECK(offsetof(ncclSimInfo_t, estimatedTime) == 16);
  const ncclSimInfo_t info = NCCL_SIM_INFO_INITIALIZER;
  CHECK(info.size == 24);
  CHECK(info.magic == 0x74685283);
  CHECK(info.version == 22809);
  CHECK(info.estimatedTime == -1.0f);
  CHECK(NCCL_SPLIT_NOCOLOR == -1);
  CHECK(NCCL_SHRINK_ABORT == 1);
  CHECK(NCCL_REVOKE_DEFAULT == 0);
}

}  // namespace
