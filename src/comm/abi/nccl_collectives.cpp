// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <utility>

#include <fmt/format.h>

#include "nccl.h"

#include "base/try.hpp"
#include "comm/abi/abi_entry.hpp"
#include "comm/group/call_jobs.hpp"
#include "comm/group/comm_entry.hpp"
#include "comm/group/group_call.hpp"
#include "comm/request/call_request.hpp"

/// NCCL's collectives, sends and receives.
namespace oriel::comm {
namespace {

Status read_operation(CommEntry& entry, ncclRedOp_t op, CollectiveRequest& request) {
  if (op >= 0 && op < ncclNumOps) {
    request.op = static_cast<ReduceOp>(op);
    return {};
  }
  ORIEL_TRY(const auto reduction, entry.reductions().find(op));
  if (reduction.type != request.type) {
    return Error(ErrorCode::invalid_argument,
                 fmt::format("the operation was made for {}, but the elements are {}",
                             name_of(reduction.type), name_of(request.type)))
        .with_hint("pass the type that ncclRedOpCreatePreMulSum was called with");
  }
  request.op = ReduceOp::premul_sum;
  request.scalar_bits = reduction.scalar_bits;
  request.scalar_pointer = reduction.scalar_pointer;
  return {};
}

/// Records the call in the thread's open group, or runs it. `request` lacks only type and
/// operation.
Status collective(CollectiveRequest&& request, ncclDataType_t type, ncclRedOp_t op,
                  ncclComm_t handle) {
  ORIEL_TRY(const auto entry, pin_entry(handle));
  ORIEL_TRY(request.type, read_type(type));
  ORIEL_CHECK(read_operation(*entry, op, request));
  ThreadGroup& group = ThreadGroup::current();
  if (Communicator* const started = entry->started(); started != nullptr && !group.open()) {
    return started->calls().collective(request);
  }
  ORIEL_TRY(auto communicator, entry->communicator());
  return group.submit(CollectiveJob{{entry.shared(), std::move(communicator)}, request});
}

Status point_to_point(PointToPointRequest&& request, ncclDataType_t type, ncclComm_t handle) {
  ORIEL_TRY(const auto entry, pin_entry(handle));
  ORIEL_TRY(request.type, read_type(type));
  return ThreadGroup::current().submit(entry, request);
}

}  // namespace
}  // namespace oriel::comm

using oriel::kernels::Collective;

ORIEL_ENTRY(ncclResult_t, ncclAllReduce, const void* sendbuff, void* recvbuff, size_t count,
            ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  return api::guard_in_group(
      "ncclAllReduce",
      [&] {
        return api::collective({.collective = Collective::all_reduce,
                                .input = sendbuff,
                                .output = recvbuff,
                                .count = count,
                                .stream = stream},
                               datatype, op, comm);
      },
      comm);
}
ORIEL_ENTRY(ncclResult_t, ncclAllGather, const void* sendbuff, void* recvbuff, size_t sendcount,
            ncclDataType_t datatype, ncclComm_t comm, cudaStream_t stream) {
  return api::guard_in_group(
      "ncclAllGather",
      [&] {
        return api::collective({.collective = Collective::all_gather,
                                .input = sendbuff,
                                .output = recvbuff,
                                .count = sendcount,
                                .stream = stream},
                               datatype, ncclSum, comm);
      },
      comm);
}
ORIEL_ENTRY(ncclResult_t, ncclReduceScatter, const void* sendbuff, void* recvbuff, size_t recvcount,
            ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  return api::guard_in_group(
      "ncclReduceScatter",
      [&] {
        return api::collective({.collective = Collective::reduce_scatter,
                                .input = sendbuff,
                                .output = recvbuff,
                                .count = recvcount,
                                .stream = stream},
                               datatype, op, comm);
      },
      comm);
}
ORIEL_ENTRY(ncclResult_t, ncclReduce, const void* sendbuff, void* recvbuff, size_t count,
            ncclDataType_t datatype, ncclRedOp_t op, int root, ncclComm_t comm,
            cudaStream_t stream) {
  return api::guard_in_group(
      "ncclReduce",
      [&] {
        return api::collective({.collective = Collective::reduce,
                                .input = sendbuff,
                                .output = recvbuff,
                                .count = count,
                                .root = root,
                                .stream = stream},
                               datatype, op, comm);
      },
      comm);
}
ORIEL_ENTRY(ncclResult_t, ncclBroadcast, const void* sendbuff, void* recvbuff, size_t count,
            ncclDataType_t datatype, int root, ncclComm_t comm, cudaStream_t stream) {
  return api::guard_in_group(
      "ncclBroadcast",
      [&] {
        return api::collective({.collective = Collective::broadcast,
                                .input = sendbuff,
                                .output = recvbuff,
                                .count = count,
                                .root = root,
                                .stream = stream},
                               datatype, ncclSum, comm);
      },
      comm);
}
ORIEL_ENTRY(ncclResult_t, ncclBcast, void* buff, size_t count, ncclDataType_t datatype, int root,
            ncclComm_t comm, cudaStream_t stream) {
  return api::guard_in_group(
      "ncclBcast",
      [&] {
        return api::collective({.collective = Collective::broadcast,
                                .input = buff,
                                .output = buff,
                                .count = count,
                                .root = root,
                                .stream = stream},
                               datatype, ncclSum, comm);
      },
      comm);
}
ORIEL_ENTRY(ncclResult_t, ncclAlltoAll, const void* sendbuff, void* recvbuff, size_t count,
            ncclDataType_t datatype, ncclComm_t comm, cudaStream_t stream) {
  return api::guard_in_group(
      "ncclAlltoAll",
      [&] {
        return api::collective({.collective = Collective::all_to_all,
                                .input = sendbuff,
                                .output = recvbuff,
                                .count = count,
                                .stream = stream},
                               datatype, ncclSum, comm);
      },
      comm);
}
ORIEL_ENTRY(ncclResult_t, ncclGather, const void* sendbuff, void* recvbuff, size_t count,
            ncclDataType_t datatype, int root, ncclComm_t comm, cudaStream_t stream) {
  return api::guard_in_group(
      "ncclGather",
      [&] {
        return api::collective({.collective = Collective::gather,
                                .input = sendbuff,
                                .output = recvbuff,
                                .count = count,
                                .root = root,
                                .stream = stream},
                               datatype, ncclSum, comm);
      },
      comm);
}
ORIEL_ENTRY(ncclResult_t, ncclScatter, const void* sendbuff, void* recvbuff, size_t count,
            ncclDataType_t datatype, int root, ncclComm_t comm, cudaStream_t stream) {
  return api::guard_in_group(
      "ncclScatter",
      [&] {
        return api::collective({.collective = Collective::scatter,
                                .input = sendbuff,
                                .output = recvbuff,
                                .count = count,
                                .root = root,
                                .stream = stream},
                               datatype, ncclSum, comm);
      },
      comm);
}
ORIEL_ENTRY(ncclResult_t, ncclSend, const void* sendbuff, size_t count, ncclDataType_t datatype,
            int peer, ncclComm_t comm, cudaStream_t stream) {
  return api::guard_in_group(
      "ncclSend",
      [&] {
        return api::point_to_point({.is_send = true,
                                    .data = const_cast<void*>(sendbuff),
                                    .count = count,
                                    .peer = peer,
                                    .stream = stream},
                                   datatype, comm);
      },
      comm);
}
ORIEL_ENTRY(ncclResult_t, ncclRecv, void* recvbuff, size_t count, ncclDataType_t datatype, int peer,
            ncclComm_t comm, cudaStream_t stream) {
  return api::guard_in_group(
      "ncclRecv",
      [&] {
        return api::point_to_point(
            {.is_send = false, .data = recvbuff, .count = count, .peer = peer, .stream = stream},
            datatype, comm);
      },
      comm);
}
