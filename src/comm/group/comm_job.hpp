// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>

#include "oriel/error.hpp"

#include "comm/communicator/rank_communicator.hpp"
#include "comm/group/comm_entry.hpp"

namespace oriel::comm {

/// State of a request of a group.
struct JobState {
  std::size_t number = 0;  ///< position among the calls of the group
  Status outcome{};        ///< success also for a request that was not attempted
};

/// Fields of every request on an existing handle.
struct CommJob {
  std::shared_ptr<CommEntry> entry;
  std::shared_ptr<Communicator> communicator;  ///< null in requests that only end a handle
  JobState state{};
};

}  // namespace oriel::comm
