// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "comm/communicator/rank_communicator.hpp"
#include "comm/group/comm_entry.hpp"
#include "comm/network/network_soft.hpp"
#include "comm/support/network_players.hpp"

namespace oriel::test {

/// The network of a communicator with software NICs, whatever kernels see of it.
inline comm::SoftNetwork& network_of(const Communicator& comm) {
  return dynamic_cast<comm::SoftNetwork&>(*must(comm::find_communicator(comm.handle()))->network());
}
inline comm::SoftNetwork& network_of(const Rank& rank) {
  return network_of(rank.comm);
}

}  // namespace oriel::test
