// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <memory>

#include "oriel/error.hpp"

#include "base/event_loop.hpp"
#include "base/task.hpp"
#include "comm/communicator/communicator_parts.hpp"

/// The network between the LSA teams of a communicator: whether it is needed, how it is made, and
/// how it is flushed before the end.
namespace oriel::comm {

/// Limits the drain of a failed communicator, and the flush of the network of any other one.
inline constexpr Duration kDrainGrace = std::chrono::seconds(5);

/// Returns whether there are several LSA teams whose ranks are all CPUs or all GPUs. The same on
/// all ranks.
bool needs_network(const Topology& topology);

/// Makes the tables of network keys; null unless needs_network(). So they exist on all ranks or on
/// none: participants take part in every registration.
Result<std::unique_ptr<NetworkWindows>> make_network_windows(const CommunicatorParts& parts);

/// Makes the network to the ranks of other LSA teams, unless it exists or there is one team.
/// Collective over the world.
Task<Status> make_network(EventLoop& loop, CommunicatorParts& parts, Deadline deadline);

/// Makes the network at the start if needs_network(). The first collective would be too late,
/// because ranks may wait for it without limit. If the ranks cannot be connected, records the
/// reason in `no_network`. Collective over the world.
Task<Status> connect_teams(EventLoop& loop, CommunicatorParts& parts, Deadline deadline);

/// Passes the addresses of the scratch memory to the exchange planner. Call it again once there is
/// a network.
void begin_exchanges(CommunicatorParts& parts);

/// Waits until this rank's posted WQEs are complete. The limit is kDrainGrace: on GPUs for all
/// queues together, on CPUs for each queue in turn. The first queue that fails or is late ends the
/// flush. Passes over queues to peers that have left. Returns at once if the communicator has
/// failed.
void flush_network(const CommunicatorParts& parts);

}  // namespace oriel::comm
