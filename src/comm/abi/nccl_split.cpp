// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include <fmt/format.h>

#include "nccl.h"

#include "base/try.hpp"
#include "comm/abi/abi_entry.hpp"
#include "comm/abi/nccl_config.hpp"
#include "comm/group/comm_entry.hpp"
#include "comm/group/group_call.hpp"
#include "comm/group/split_job.hpp"

namespace oriel::comm {
namespace {

/// Returns the request of the arguments. An error becomes SplitRequest::refused, because the other
/// ranks enter this call too and receive the error there.
SplitRequest read_request(int color, int key, const ncclComm_t* out, const ncclConfig_t* config) {
  SplitRequest request;
  const auto refuse = [&](Error error) {
    if (!request.refused) request.refused = std::move(error);
  };
  request.key = key;
  if (color >= 0) request.color = color;
  if (const Status place = require(out, "newcomm"); !place.ok()) refuse(place.error());
  if (color < NCCL_SPLIT_NOCOLOR) {
    refuse(Error(ErrorCode::invalid_argument, fmt::format("color is {}", color))
               .with_hint("pass 0 or more, or NCCL_SPLIT_NOCOLOR for no new communicator"));
  }
  if (color < 0 || config == nullptr) return request;
  auto options = read_config(config);
  if (options.ok()) {
    request.options = std::move(options).value();
  } else {
    refuse(std::move(options).error());
  }
  return request;
}

Status split_communicator(ncclComm_t handle, int color, int key, ncclComm_t* out,
                          const ncclConfig_t* config, bool& in_progress) {
  if (out != nullptr) *out = nullptr;
  ORIEL_TRY(auto entry, find_entry(handle));
  ORIEL_TRY(auto communicator, entry->communicator());
  SplitRequest request = read_request(color, key, out, config);
  return ThreadGroup::current().submit(
      make_split_job(std::move(entry), std::move(communicator), std::move(request), out),
      in_progress);
}

}  // namespace
}  // namespace oriel::comm

ORIEL_ENTRY(ncclResult_t, ncclCommSplit, ncclComm_t comm, int color, int key, ncclComm_t* newcomm,
            ncclConfig_t* config) {
  return api::guard_progress(
      "ncclCommSplit",
      [&](bool& in_progress) {
        return api::split_communicator(comm, color, key, newcomm, config, in_progress);
      },
      comm);
}
