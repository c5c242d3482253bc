// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "perf/library.hpp"

#include <dlfcn.h>
#include <fmt/format.h>
#include <link.h>

#include "base/try.hpp"

namespace oriel::perf {
namespace {

template <typename Function>
void find(void* handle, const char* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(handle, name));
}

template <typename Function>
Status require(void* handle, const std::string& path, const char* name, Function& function) {
  find(handle, name, function);
  if (function != nullptr) return {};
  return Error(ErrorCode::invalid_argument,
               fmt::format("{} has no function {}: not a libnccl-compatible library", path, name));
}

}  // namespace

Result<Library> Library::open(const std::string& path) {
  void* handle = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr)
    return Error(ErrorCode::invalid_argument, fmt::format("loading the library: {}", ::dlerror()))
        .with_hint("--lib and --against take the path of a libnccl.so.2");
  Library library;
  library.path = path;
  link_map* map = nullptr;
  if (::dlinfo(handle, RTLD_DI_LINKMAP, &map) == 0 && map && map->l_name[0] != '\0')
    library.path = map->l_name;
  ORIEL_CHECK(require(handle, path, "ncclGetVersion", library.get_version));
  ORIEL_CHECK(require(handle, path, "ncclGetUniqueId", library.get_unique_id));
  ORIEL_CHECK(require(handle, path, "ncclCommInitRank", library.comm_init_rank));
  ORIEL_CHECK(require(handle, path, "ncclCommDestroy", library.comm_destroy));
  ORIEL_CHECK(require(handle, path, "ncclCommGetAsyncError", library.comm_get_async_error));
  ORIEL_CHECK(require(handle, path, "ncclGetErrorString", library.get_error_string));
  ORIEL_CHECK(require(handle, path, "ncclAllReduce", library.all_reduce));
  find(handle, "ncclAllGather", library.collectives.all_gather);
  find(handle, "ncclReduceScatter", library.collectives.reduce_scatter);
  find(handle, "ncclReduce", library.collectives.reduce);
  find(handle, "ncclBroadcast", library.collectives.broadcast);
  find(handle, "ncclAlltoAll", library.collectives.all_to_all);
  find(handle, "ncclGather", library.collectives.gather);
  find(handle, "ncclScatter", library.collectives.scatter);
  find(handle, "ncclSend", library.collectives.send);
  find(handle, "ncclRecv", library.collectives.receive);
  find(handle, "ncclGroupStart", library.collectives.group_start);
  find(handle, "ncclGroupEnd", library.collectives.group_end);
  find(handle, "ncclCommInitRankConfig", library.comm_init_rank_config);
  find(handle, "ncclGetLastError", library.get_last_error);
  find(handle, "ncclMemAlloc", library.mem_alloc);
  find(handle, "ncclMemFree", library.mem_free);
  find(handle, "ncclCommWindowRegister", library.window_register);
  find(handle, "ncclCommWindowDeregister", library.window_deregister);
  find(handle, "ncclRedOpCreatePreMulSum", library.red_op_create_pre_mul_sum);
  find(handle, "ncclRedOpDestroy", library.red_op_destroy);
  find(handle, "ncclCommRegister", library.comm_register);
  find(handle, "ncclCommDeregister", library.comm_deregister);
  ORIEL_CHECK(library.check(library.get_version(&library.version), "ncclGetVersion"));
  return library;
}

Status Library::check(ncclResult_t result, const char* call, ncclComm_t comm) const {
  if (result == ncclSuccess) return {};
  const char* detail = get_last_error ? get_last_error(comm) : nullptr;
  const bool has_detail = detail != nullptr && *detail != '\0';
  return Error(
      result == ncclRemoteError ? ErrorCode::remote : ErrorCode::invalid_usage,
      fmt::format("{}: {} (result {}){}{}", call, get_error_string(result),
                  static_cast<int>(result), has_detail ? ": " : "", has_detail ? detail : ""));
}

}  // namespace oriel::perf
