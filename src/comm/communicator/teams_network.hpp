// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <memory>

#include "oriel/error.hpp"

#include "base/event_loop.hpp"
#include "base/task.hpp"
#include "comm/communicator/communicator_parts.hpp"

/// The network between the LSA teams of a communicator: when there is one, how it is made, and how
/// it is emptied before the end.
namespace oriel::comm {

/// How long the end of a communicator waits for what others may never take.
inline constexpr Duration kDrainGrace = std::chrono::seconds(5);

/// Returns whether there are several LSA teams, which a network can join. The same on all ranks.
bool needs_network(const Topology& topology);

/// Returns null where no queue will ever lead to another rank: the same on all ranks, for
/// participants take part in every registration.
Result<std::unique_ptr<NetworkWindows>> make_network_windows(const CommunicatorParts& parts);

/// Makes what reaches the ranks of other LSA teams, if there are any. Collective over the world.
Task<Status> make_network(EventLoop& loop, CommunicatorParts& parts, Deadline deadline);

/// Makes the network, where CPU ranks are of several LSA teams. At the start and not in the first
/// collective, which may wait for other ranks as long as they like. Where there can be no network,
/// this remembers why. Collective over the world.
Task<Status> connect_teams(EventLoop& loop, CommunicatorParts& parts, Deadline deadline);

/// Shows the exchanges the memory that they use. To be repeated once there is a network.
void begin_exchanges(CommunicatorParts& parts);

/// Waits until other ranks have all that this one has sent them, or for kDrainGrace.
void flush_network(const CommunicatorParts& parts);

}  // namespace oriel::comm
