// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "nccl.h"

#include "base/try.hpp"
#include "comm/abi/abi_entry.hpp"
#include "comm/group/comm_entry.hpp"

/// NCCL calls that this version does not support. A refusal depends on nothing that differs among
/// ranks, so every rank gets it without a message.
namespace oriel::comm {
namespace {

Status refuse_call(ncclComm_t handle, const char* call, const char* instead) {
  ORIEL_TRY(const auto entry, find_entry(handle));
  return Error(ErrorCode::invalid_usage,
               fmt::format("{} is not supported by this version of Oriel", call))
      .with_hint(instead);
}

Status refuse_shrink(ncclComm_t handle, ncclComm_t* out) {
  if (out != nullptr) *out = nullptr;
  return refuse_call(handle, "ncclCommShrink",
                     "start a communicator of the remaining ranks with ncclGetUniqueId and "
                     "ncclCommInitRank, and destroy or abort this one");
}

constexpr const char* kOwnDeviceHeaders =
    "write the kernel with Oriel's device headers, and make its communicator with "
    "oriel::Communicator::device_comm";

}  // namespace
}  // namespace oriel::comm

ORIEL_ENTRY(ncclResult_t, ncclCommShrink, ncclComm_t comm, int* /*excludeRanksList*/,
            int /*excludeRanksCount*/, ncclComm_t* newcomm, ncclConfig_t* /*config*/,
            int /*shrinkFlags*/) {
  return api::guard("ncclCommShrink", [&] { return api::refuse_shrink(comm, newcomm); });
}
ORIEL_ENTRY(ncclResult_t, ncclDevCommCreate, ncclComm_t comm,
            const struct ncclDevCommRequirements* /*reqs*/, struct ncclDevComm* /*outDevComm*/) {
  return api::guard("ncclDevCommCreate", [&] {
    return api::refuse_call(comm, "ncclDevCommCreate", api::kOwnDeviceHeaders);
  });
}
ORIEL_ENTRY(ncclResult_t, ncclDevCommDestroy, ncclComm_t comm,
            const struct ncclDevComm* /*devComm*/) {
  return api::guard("ncclDevCommDestroy", [&] {
    return api::refuse_call(comm, "ncclDevCommDestroy", api::kOwnDeviceHeaders);
  });
}
