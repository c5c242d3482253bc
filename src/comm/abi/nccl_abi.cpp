// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstring>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "nccl.h"

#include "base/free_descriptors.hpp"
#include "base/log.hpp"
#include "base/try.hpp"
#include "boot/auth/unique_id_format.hpp"
#include "comm/abi/abi_entry.hpp"
#include "comm/abi/api_entry.hpp"
#include "comm/abi/last_error.hpp"
#include "comm/abi/nccl_config.hpp"
#include "comm/device/device.hpp"
#include "comm/group/comm_entry.hpp"
#include "comm/group/end_jobs.hpp"
#include "comm/group/group_call.hpp"
#include "kernels/plan/most_ranks.hpp"

/// NCCL's C interface: each entry is one guarded call into the modules.
namespace oriel::comm {
namespace {

// Runs when the library is loaded, because the process usually has one thread then.
[[maybe_unused]] const bool is_table_grown = [] {
  grow_descriptor_table();
  return true;
}();

Status get_version(int* version) {
  ORIEL_CHECK(require(version, "version"));
  *version = NCCL_VERSION_CODE;
  return {};
}

Status get_unique_id(ncclUniqueId* out) {
  ORIEL_CHECK(require(out, "uniqueId"));
  ORIEL_TRY(const auto id, make_unique_id());
  const auto bytes = id.encode();
  static_assert(sizeof out->internal == boot::UniqueId::kBytes);
  std::memcpy(out->internal, bytes.data(), bytes.size());
  return {};
}

/// Starts one rank. `arguments` is the outcome of the caller's own checks.
Status init_rank(ncclComm_t* out, int size, const ncclUniqueId& id, int rank,
                 const ncclConfig_t* config, bool& in_progress, const Status& arguments = {}) {
  Status place = require(out, "comm");
  if (place.ok()) *out = nullptr;
  const auto decoded = boot::UniqueId::decode(std::as_bytes(std::span(id.internal)));
  const Status known = decoded.ok() ? check_rank(rank, size) : Status(decoded.error());
  if (!known.ok()) return place.ok() ? known : place;
  // From here on, the other ranks can be informed of an error of this rank.
  const Status& wrong = place.ok() ? arguments : place;
  const auto options =
      wrong.ok() ? read_config(config, rank) : Result<CommunicatorOptions>(wrong.error());
  const bool blocking =
      options.ok() ? options.value().blocking : !place.ok() || asks_for_blocking(config);
  InitJob job = make_init_job(decoded.value(), rank, size, options, blocking, current_device());
  if (place.ok()) job.handle.show(out);
  ORIEL_CHECK(ThreadGroup::current().submit(std::move(job), in_progress));
  return place;
}

/// Starts one rank; all ranks meet at the first id.
Status init_rank_scalable(ncclComm_t* out, int size, int rank, int id_count,
                          const ncclUniqueId* ids, const ncclConfig_t* config, bool& in_progress) {
  if (out != nullptr) *out = nullptr;
  ORIEL_CHECK(require(ids, "commIds"));
  Status arguments;
  if (id_count < 1 || id_count > size) {
    arguments = Error(ErrorCode::invalid_argument, fmt::format("nId is {}", id_count))
                    .with_hint(fmt::format("1 to {}, the number of ranks, are allowed", size));
  }
  if (id_count < 1) return arguments;
  for (int i = 1; i < id_count && arguments.ok(); ++i) {
    const auto id = boot::UniqueId::decode(std::as_bytes(std::span(ids[i].internal)));
    if (!id.ok()) arguments = Error(id.error()).with_context(fmt::format("commIds[{}]", i));
  }
  return init_rank(out, size, ids[0], rank, config, in_progress, arguments);
}

Status init_all(ncclComm_t* out, int count, const int* devices) {
  ORIEL_CHECK(require(out, "comm"));
  if (count < 1) {
    return Error(ErrorCode::invalid_argument, fmt::format("ndev is {}", count))
        .with_hint("pass the number of devices, at least 1");
  }
  ORIEL_CHECK(check_rank(0, count));
  for (int i = 0; i < count; ++i) out[i] = nullptr;
  ORIEL_TRY(const int gpus, gpu_count());
  // All ranks are on one node, so too many ranks are refused before they start.
  const int most = kernels::most_ranks(kernels::Backend::host);
  if (gpus == 0 && count > most) {
    return Error(ErrorCode::invalid_argument,
                 fmt::format("ndev is {}, but at most {} ranks of one node can be on the CPU",
                             count, most))
        .with_hint(
            "pass a smaller ndev, or start processes that are divided into nodes "
            "(ORIEL_HOSTID)");
  }
  if (gpus == 0 && devices != nullptr) {
    return Error(ErrorCode::invalid_argument, "devlist is given, but there is no GPU")
        .with_hint("pass null: all ranks then live on the CPU");
  }
  ORIEL_TRY(const auto id, make_unique_id());
  bool in_progress = false;
  std::vector<InitJob> jobs;
  for (int rank = 0; rank < count; ++rank) {
    Device* device = &host_device();
    if (gpus > 0) {
      ORIEL_TRY(device, device_with_ordinal(devices != nullptr ? devices[rank] : rank));
    }
    jobs.push_back(make_init_job(id, rank, count, CommunicatorOptions{}, true, device));
    jobs.back().handle.show(&out[rank]);
  }
  return ThreadGroup::current().submit(std::move(jobs), in_progress);
}

Status finalize(ncclComm_t handle, bool& in_progress) {
  ORIEL_TRY(auto entry, find_entry(handle));
  ORIEL_TRY(auto communicator, entry->communicator());
  return ThreadGroup::current().submit(FinalizeJob{{std::move(entry), std::move(communicator)}},
                                       in_progress);
}

/// Records an end in the thread's open group, or runs it at once. An inherited handle always ends
/// at once.
template <class EndJob>
Status end_handle(ncclComm_t handle, Status (*end)(ncclComm_t)) {
  ThreadGroup& group = ThreadGroup::current();
  if (handle == nullptr) return {};
  auto entry = comm_table().get(handle);
  if (!group.open() || entry == nullptr || entry->inherited()) return end(handle);
  return group.note(EndJob{{std::move(entry), nullptr}, handle});
}

Status revoke(ncclComm_t handle, int flags) {
  if (handle == nullptr) return {};
  ORIEL_TRY(const auto entry, find_entry(handle));
  if (flags != NCCL_REVOKE_DEFAULT) {
    return Error(ErrorCode::invalid_argument, fmt::format("revokeFlags is {}", flags))
        .with_hint("use NCCL_REVOKE_DEFAULT");
  }
  ORIEL_TRY(const auto communicator,
            entry->revoke(Error(ErrorCode::aborted, "ncclCommRevoke was called")));
  // Waits for the kernels: the user may free buffers from now on.
  return communicator != nullptr ? communicator->drain() : Status();
}

Status get_async_error(ncclComm_t handle, ncclResult_t* out) {
  ORIEL_CHECK(require(out, "asyncError"));
  ORIEL_TRY(const auto entry, find_entry(handle));
  if (entry->in_progress()) {
    *out = ncclInProgress;
    return {};
  }
  // After a revoke, the caller polls for the communicator to be quiet, and knows the reason.
  const auto error = entry->revoked() ? std::nullopt : entry->async_error();
  *out = error ? to_nccl(error->code()) : ncclSuccess;
  // PyTorch 2.11 requests the error text with a null handle, on the thread that received this
  // result.
  if (error) remember_known_error(*error);
  return {};
}

Status query(ncclComm_t handle, int* out, const char* name, int (CommEntry::*value)() const) {
  ORIEL_CHECK(require(out, name));
  ORIEL_TRY(const auto entry, find_entry(handle));
  ORIEL_CHECK(entry->has_place());
  *out = (entry.get()->*value)();
  return {};
}

Status allocate(void** out, std::size_t bytes) {
  ORIEL_CHECK(require(out, "ptr"));
  *out = nullptr;
  ORIEL_TRY(Device* const device, current_device());
  ORIEL_TRY(*out, device->memory().allocate(bytes));
  return {};
}

Status free_memory(void* pointer) {
  if (pointer == nullptr) return {};
  ORIEL_TRY(Device* const device, device_of_allocation(pointer));
  return device->memory().free(pointer);
}

Status register_window(ncclComm_t handle, void* buffer, std::size_t bytes, ncclWindow_t* out,
                       int flags, bool& in_progress) {
  if (out != nullptr) *out = nullptr;
  WindowJob job;
  ORIEL_TRY(job.entry, find_entry(handle));
  ORIEL_TRY(job.communicator, job.entry->communicator());
  job.request.pointer = buffer;
  job.request.bytes = bytes;
  job.request.flags = static_cast<std::uint32_t>(flags);
  // The other ranks enter this call too and receive the error there.
  if (const Status given = require(out, "win"); !given.ok()) job.request.refused = given.error();
  job.out = out;
  return ThreadGroup::current().submit(std::move(job), in_progress);
}

Status deregister_window(ncclComm_t handle, ncclWindow_t window) {
  ORIEL_TRY(const auto communicator, find_communicator(handle));
  ORIEL_CHECK(require(window, "win"));
  return communicator->deregister_window(window);
}

Status create_premul_sum(ncclRedOp_t* out, void* scalar, ncclDataType_t type,
                         ncclScalarResidence_t residence, ncclComm_t handle) {
  ORIEL_CHECK(require(out, "op"));
  ORIEL_CHECK(require(scalar, "scalar"));
  ORIEL_TRY(const auto entry, find_entry(handle));
  UserReduction reduction;
  ORIEL_TRY(reduction.type, read_type(type));
  if (residence == ncclScalarHostImmediate) {
    std::memcpy(&reduction.scalar_bits, scalar, size_of(reduction.type));
  } else if (residence == ncclScalarDevice) {
    reduction.scalar_pointer = scalar;
  } else {
    return Error(ErrorCode::invalid_argument,
                 fmt::format("residence is {}", static_cast<int>(residence)))
        .with_hint("use ncclScalarDevice or ncclScalarHostImmediate");
  }
  ORIEL_TRY(const int number, entry->reductions().add(reduction));
  *out = static_cast<ncclRedOp_t>(number);
  return {};
}

Status destroy_reduction(ncclRedOp_t op, ncclComm_t handle) {
  ORIEL_TRY(const auto entry, find_entry(handle));
  return entry->reductions().remove(op);
}

/// Returns success if `info` was initialised by NCCL_SIM_INFO_INITIALIZER, of this version or
/// another.
Status check_sim_info(const ncclSimInfo_t* info) {
  ORIEL_CHECK(require(info, "simInfo"));
  constexpr unsigned kMagic = 0x74685283;
  constexpr unsigned kFirstVersion = NCCL_VERSION(2, 22, 0);
  constexpr std::size_t kSmallest = offsetof(ncclSimInfo_t, estimatedTime) + sizeof(float);
  if (info->magic == kMagic && info->size >= kSmallest && info->version >= kFirstVersion) return {};
  return Error(ErrorCode::invalid_argument, "ncclSimInfo_t was not initialised")
      .with_hint("begin with NCCL_SIM_INFO_INITIALIZER");
}

Status simulate_group_end(ncclSimInfo_t* info) {
  ThreadGroup& group = ThreadGroup::current();
  std::optional<double> estimate;
  ORIEL_CHECK(group.simulate_end(estimate));
  if (group.open()) return {};
  ORIEL_CHECK(check_sim_info(info));
  info->estimatedTime = estimate ? static_cast<float>(*estimate) : NCCL_UNDEF_FLOAT;
  return {};
}

/// Ignores the reset, because the log settings are read once per process.
Status ignore_reset_of_log() {
  Log().info("ncclResetDebugInit does nothing: ORIEL_LOG is read once");
  return {};
}

const char* result_name(ncclResult_t result) {
  switch (result) {
    case ncclSuccess:
      return "no error";
    case ncclUnhandledCudaError:
      return "CUDA error";
    case ncclSystemError:
      return "system error";
    case ncclInternalError:
      return "internal error";
    case ncclInvalidArgument:
      return "invalid argument";
    case ncclInvalidUsage:
      return "invalid usage";
    case ncclRemoteError:
      return "remote error: another rank failed, died or aborted";
    case ncclInProgress:
      return "in progress";
    case ncclNumResults:
      break;
  }
  return "unknown result";
}

const char* last_error(ncclComm_t handle) noexcept {
  try {
    if (handle == nullptr) return last_error_text();
    const auto entry = comm_table().get(handle);
    const bool ours = entry != nullptr && !entry->inherited();
    const auto error = ours ? entry->async_error() : std::nullopt;
    return error ? hold_text(error->to_string()) : last_error_text();
  } catch (...) {
    return "";
  }
}

}  // namespace
}  // namespace oriel::comm

ORIEL_ENTRY(ncclResult_t, ncclGetVersion, int* version) {
  return api::guard("ncclGetVersion", [&] { return api::get_version(version); });
}
ORIEL_ENTRY(ncclResult_t, ncclGetUniqueId, ncclUniqueId* id) {
  return api::guard("ncclGetUniqueId", [&] { return api::get_unique_id(id); });
}
ORIEL_ENTRY(ncclResult_t, ncclCommInitRank, ncclComm_t* comm, int nranks, ncclUniqueId id,
            int rank) {
  return api::guard_progress("ncclCommInitRank", [&](bool& in_progress) {
    return api::init_rank(comm, nranks, id, rank, nullptr, in_progress);
  });
}
ORIEL_ENTRY(ncclResult_t, ncclCommInitRankConfig, ncclComm_t* comm, int nranks, ncclUniqueId id,
            int rank, ncclConfig_t* config) {
  return api::guard_progress("ncclCommInitRankConfig", [&](bool& in_progress) {
    return api::init_rank(comm, nranks, id, rank, config, in_progress);
  });
}
ORIEL_ENTRY(ncclResult_t, ncclCommInitRankScalable, ncclComm_t* newcomm, int nranks, int myrank,
            int nId, ncclUniqueId* commIds, ncclConfig_t* config) {
  return api::guard_progress("ncclCommInitRankScalable", [&](bool& in_progress) {
    return api::init_rank_scalable(newcomm, nranks, myrank, nId, commIds, config, in_progress);
  });
}
ORIEL_ENTRY(ncclResult_t, ncclCommInitAll, ncclComm_t* comm, int ndev, const int* devlist) {
  return api::guard_in_group("ncclCommInitAll", [&] { return api::init_all(comm, ndev, devlist); });
}
ORIEL_ENTRY(ncclResult_t, ncclCommFinalize, ncclComm_t comm) {
  return api::guard_progress(
      "ncclCommFinalize", [&](bool& in_progress) { return api::finalize(comm, in_progress); },
      comm);
}
ORIEL_ENTRY(ncclResult_t, ncclCommDestroy, ncclComm_t comm) {
  return api::guard("ncclCommDestroy", [&] {
    return api::end_handle<api::DestroyJob>(comm, api::destroy_communicator);
  });
}
ORIEL_ENTRY(ncclResult_t, ncclCommAbort, ncclComm_t comm) {
  return api::guard("ncclCommAbort",
                    [&] { return api::end_handle<api::AbortJob>(comm, api::abort_communicator); });
}
ORIEL_ENTRY(ncclResult_t, ncclCommRevoke, ncclComm_t comm, int revokeFlags) {
  return api::guard("ncclCommRevoke", [&] { return api::revoke(comm, revokeFlags); });
}
ORIEL_ENTRY(ncclResult_t, ncclCommGetAsyncError, ncclComm_t comm, ncclResult_t* asyncError) {
  return api::guard("ncclCommGetAsyncError",
                    [&] { return api::get_async_error(comm, asyncError); });
}
ORIEL_ENTRY(ncclResult_t, ncclCommCount, const ncclComm_t comm, int* count) {
  return api::guard("ncclCommCount",
                    [&] { return api::query(comm, count, "count", &api::CommEntry::size); });
}
ORIEL_ENTRY(ncclResult_t, ncclCommCuDevice, const ncclComm_t comm, int* device) {
  return api::guard("ncclCommCuDevice",
                    [&] { return api::query(comm, device, "device", &api::CommEntry::device); });
}
ORIEL_ENTRY(ncclResult_t, ncclCommUserRank, const ncclComm_t comm, int* rank) {
  return api::guard("ncclCommUserRank",
                    [&] { return api::query(comm, rank, "rank", &api::CommEntry::rank); });
}
ORIEL_ENTRY(const char*, ncclGetErrorString, ncclResult_t result) {
  return api::result_name(result);
}
ORIEL_ENTRY(const char*, ncclGetLastError, ncclComm_t comm) {
  return api::last_error(comm);
}
ORIEL_ENTRY(void, ncclResetDebugInit, void) {
  api::guard("ncclResetDebugInit", [] { return api::ignore_reset_of_log(); });
}
ORIEL_ENTRY(ncclResult_t, ncclMemAlloc, void** ptr, size_t size) {
  return api::guard("ncclMemAlloc", [&] { return api::allocate(ptr, size); });
}
ORIEL_ENTRY(ncclResult_t, ncclMemFree, void* ptr) {
  return api::guard("ncclMemFree", [&] { return api::free_memory(ptr); });
}
ORIEL_ENTRY(ncclResult_t, ncclCommWindowRegister, ncclComm_t comm, void* buff, size_t size,
            ncclWindow_t* win, int winFlags) {
  return api::guard_progress(
      "ncclCommWindowRegister",
      [&](bool& in_progress) {
        return api::register_window(comm, buff, size, win, winFlags, in_progress);
      },
      comm);
}
ORIEL_ENTRY(ncclResult_t, ncclCommWindowDeregister, ncclComm_t comm, ncclWindow_t win) {
  return api::guard(
      "ncclCommWindowDeregister", [&] { return api::deregister_window(comm, win); }, comm);
}
ORIEL_ENTRY(ncclResult_t, ncclRedOpCreatePreMulSum, ncclRedOp_t* op, void* scalar,
            ncclDataType_t datatype, ncclScalarResidence_t residence, ncclComm_t comm) {
  return api::guard("ncclRedOpCreatePreMulSum",
                    [&] { return api::create_premul_sum(op, scalar, datatype, residence, comm); });
}
ORIEL_ENTRY(ncclResult_t, ncclRedOpDestroy, ncclRedOp_t op, ncclComm_t comm) {
  return api::guard("ncclRedOpDestroy", [&] { return api::destroy_reduction(op, comm); });
}
ORIEL_ENTRY(ncclResult_t, ncclGroupStart, void) {
  return api::guard("ncclGroupStart", [] {
    api::ThreadGroup::current().start();
    return oriel::Status();
  });
}
ORIEL_ENTRY(ncclResult_t, ncclGroupEnd, void) {
  return api::guard_progress("ncclGroupEnd", [](bool& in_progress) {
    return api::ThreadGroup::current().end(in_progress);
  });
}
ORIEL_ENTRY(ncclResult_t, ncclGroupSimulateEnd, ncclSimInfo_t* simInfo) {
  return api::guard("ncclGroupSimulateEnd", [&] { return api::simulate_group_end(simInfo); });
}
