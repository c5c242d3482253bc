// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "nccl.h"
#include "oriel/error.hpp"

namespace oriel::perf {

/// Optional collective, point-to-point and group functions. A pointer is null if the library lacks
/// the function.
struct CollectiveTable {
  decltype(&ncclAllGather) all_gather = nullptr;
  decltype(&ncclReduceScatter) reduce_scatter = nullptr;
  decltype(&ncclReduce) reduce = nullptr;
  decltype(&ncclBroadcast) broadcast = nullptr;
  decltype(&ncclAlltoAll) all_to_all = nullptr;
  decltype(&ncclGather) gather = nullptr;
  decltype(&ncclScatter) scatter = nullptr;
  decltype(&ncclSend) send = nullptr;
  decltype(&ncclRecv) receive = nullptr;
  decltype(&ncclGroupStart) group_start = nullptr;
  decltype(&ncclGroupEnd) group_end = nullptr;
};

/// A libnccl-compatible library loaded into this process, as a table of its functions. The library
/// stays loaded until the process ends: such libraries start threads and cannot be unloaded.
struct Library {
  static Result<Library> open(const std::string& path);

  std::string path;  ///< path of the loaded file
  int version = 0;   ///< result of ncclGetVersion

  // Required functions: open() fails if one is missing.
  decltype(&ncclGetVersion) get_version = nullptr;
  decltype(&ncclGetUniqueId) get_unique_id = nullptr;
  decltype(&ncclCommInitRank) comm_init_rank = nullptr;
  decltype(&ncclCommDestroy) comm_destroy = nullptr;
  decltype(&ncclCommGetAsyncError) comm_get_async_error = nullptr;
  decltype(&ncclGetErrorString) get_error_string = nullptr;
  decltype(&ncclAllReduce) all_reduce = nullptr;
  CollectiveTable collectives;
  // Optional functions, null if the library lacks them; callers check.
  decltype(&ncclCommInitRankConfig) comm_init_rank_config = nullptr;
  decltype(&ncclGetLastError) get_last_error = nullptr;
  decltype(&ncclMemAlloc) mem_alloc = nullptr;
  decltype(&ncclMemFree) mem_free = nullptr;
  decltype(&ncclCommWindowRegister) window_register = nullptr;
  decltype(&ncclCommWindowDeregister) window_deregister = nullptr;
  decltype(&ncclRedOpCreatePreMulSum) red_op_create_pre_mul_sum = nullptr;
  decltype(&ncclRedOpDestroy) red_op_destroy = nullptr;
  ncclResult_t (*comm_register)(ncclComm_t, void*, size_t, void**) = nullptr;
  ncclResult_t (*comm_deregister)(ncclComm_t, void*) = nullptr;

  /// Returns an error for any result but ncclSuccess. The error names the call and has the texts of
  /// ncclGetErrorString and, where present, ncclGetLastError.
  Status check(ncclResult_t result, const char* call, ncclComm_t comm = nullptr) const;
};

}  // namespace oriel::perf
