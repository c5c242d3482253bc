// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include "oriel/error.hpp"

#include "comm/communicator/rank_communicator.hpp"

/// The calls of a group that move data, and how they are carried out.
namespace oriel::comm {

struct CollectiveJob {
  std::shared_ptr<Communicator> communicator;
  CollectiveRequest request;
};

struct PointToPointJob {
  std::shared_ptr<Communicator> communicator;
  PointToPointRequest request;
};

/// Makes all calls; both lists are in the order of the calls. For each communicator its collectives
/// come first, then its sends and receives as one exchange. All calls are checked before the first
/// begins: if one is wrong, none is made. Returns the first error.
///
/// GPU launches are enqueued first, all from this thread. Then the CPU communicators run, each on a
/// thread of its own if there are several, for a call ends when the other ranks have come.
Status run_calls(const std::vector<CollectiveJob>& collectives,
                 const std::vector<PointToPointJob>& transfers);

}  // namespace oriel::comm
