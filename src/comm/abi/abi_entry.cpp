// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/abi/abi_entry.hpp"

#include "comm/abi/last_error.hpp"
#include "comm/group/group_call.hpp"

namespace oriel::comm {

ncclResult_t to_nccl(ErrorCode code) {
  switch (code) {
    case ErrorCode::cuda:
      return ncclUnhandledCudaError;
    case ErrorCode::system:
      return ncclSystemError;
    case ErrorCode::internal:
      return ncclInternalError;
    case ErrorCode::invalid_argument:
      return ncclInvalidArgument;
    case ErrorCode::invalid_usage:
      return ncclInvalidUsage;
    case ErrorCode::remote:
      return ncclRemoteError;
    case ErrorCode::timeout:
      return ncclSystemError;
    case ErrorCode::aborted:
      return ncclInvalidUsage;
  }
  return ncclInternalError;
}

ncclResult_t report(Error error, const char* call, InGroup in_group) {
  const Error full = std::move(error).with_context(call);
  remember_error(full);
  if (in_group == InGroup::cancels) ThreadGroup::current().remember(full);
  return to_nccl(full.code());
}

Result<DataType> read_type(ncclDataType_t type) {
  if (type >= 0 && type < ncclNumTypes) return static_cast<DataType>(type);
  return Error(ErrorCode::invalid_argument,
               fmt::format("datatype is {}, but types go from 0 to {}", static_cast<int>(type),
                           static_cast<int>(ncclNumTypes) - 1))
      .with_hint("pass a value of ncclDataType_t, such as ncclFloat32");
}

}  // namespace oriel::comm
