// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include <fmt/format.h>

#include "nccl.h"

#include "base/try.hpp"
#include "comm/abi/abi_entry.hpp"
#include "comm/group/comm_entry.hpp"
#include "comm/group/group_call.hpp"

/// NCCL's calls that move data.
namespace oriel::comm {
namespace {

Status collective(kernels::Collective collective, const void* input, void* output,
                  std::size_t count, ncclDataType_t type, ncclRedOp_t op, ncclComm_t handle,
                  cudaStream_t stream) {
  ORIEL_TRY(const auto entry, find_entry(handle));
  CollectiveRequest request;
  request.collective = collective;
  request.input = input;
  request.output = output;
  request.count = count;
  request.stream = stream;
  ORIEL_TRY(request.type, read_type(type));
  if (op >= 0 && op < ncclNumOps) {
    request.op = static_cast<ReduceOp>(op);
  } else {
    ORIEL_TRY(const auto reduction, entry->reductions().find(op));
    if (reduction.type != request.type) {
      return Error(ErrorCode::invalid_argument,
                   fmt::format("the operation was made for {}, but the elements are {}",
                               name_of(reduction.type), name_of(request.type)));
    }
    request.op = ReduceOp::premul_sum;
    request.scalar_bits = reduction.scalar_bits;
    request.scalar_pointer = reduction.scalar_pointer;
  }
  ThreadGroup& group = ThreadGroup::current();
  if (Communicator* const started = entry->started(); started != nullptr && !group.open()) {
    return started->collective(request);
  }
  ORIEL_TRY(auto communicator, entry->communicator());
  return group.submit(CollectiveJob{std::move(communicator), request});
}

}  // namespace
}  // namespace oriel::comm

using oriel::kernels::Collective;

ORIEL_ENTRY(ncclResult_t, ncclAllReduce, const void* sendbuff, void* recvbuff, size_t count,
            ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  return front::guard(
      "ncclAllReduce",
      [&] {
        return front::collective(Collective::all_reduce, sendbuff, recvbuff, count, datatype, op,
                                 comm, stream);
      },
      comm);
}
ORIEL_ENTRY(ncclResult_t, ncclAllGather, const void* sendbuff, void* recvbuff, size_t sendcount,
            ncclDataType_t datatype, ncclComm_t comm, cudaStream_t stream) {
  return front::guard(
      "ncclAllGather",
      [&] {
        return front::collective(Collective::all_gather, sendbuff, recvbuff, sendcount, datatype,
                                 ncclSum, comm, stream);
      },
      comm);
}
ORIEL_ENTRY(ncclResult_t, ncclReduceScatter, const void* sendbuff, void* recvbuff, size_t recvcount,
            ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  return front::guard(
      "ncclReduceScatter",
      [&] {
        return front::collective(Collective::reduce_scatter, sendbuff, recvbuff, recvcount,
                                 datatype, op, comm, stream);
      },
      comm);
}
