// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "oriel/error.hpp"

#include "comm/request/call_request.hpp"

/// Checks a call's arguments without other ranks. All errors are invalid_argument and name the call
/// and the rule.
namespace oriel::comm {

/// Refuses a root that is not a rank. Applies also to calls of no elements.
Status check_root(const CollectiveRequest& request, int size);

/// Refuses counts larger than memory. Refuses buffers that `rank` of `size` ranks uses if they are
/// null or not aligned to the element. Refuses buffers that overlap, except in place:
///
/// | collective                | in place                             |
/// |---------------------------|--------------------------------------|
/// | all-reduce                | sendbuff == recvbuff                 |
/// | broadcast, reduce at root | sendbuff == recvbuff                 |
/// | all-gather                | sendbuff == recvbuff + rank * count  |
/// | gather at root            | sendbuff == recvbuff + root * count  |
/// | reduce-scatter            | recvbuff == sendbuff + rank * count  |
/// | scatter at root           | recvbuff == sendbuff + root * count  |
/// | all-to-all                | sendbuff == recvbuff, data undefined |
Status check_collective(const CollectiveRequest& request, int rank, int size);

/// Refuses peers that are not ranks, counts larger than memory, and null buffers with elements to
/// move.
Status check_point_to_point(const PointToPointRequest& request, int size);

}  // namespace oriel::comm
