// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "comm/communicator/communicator_parts.hpp"

/// Which CPU ranks of a team can read each other's memory where no window holds it.
namespace oriel::comm {

/// Writes this rank's ReadingProbe into its scratch memory, before that is a window.
void write_reading_probe(CommunicatorParts& parts);

/// Tries to read the word of each other rank of the team, whose probes are written. Sets
/// parts.processes, of which each rank has its own: what one may read, another may not.
void find_peer_processes(CommunicatorParts& parts);

}  // namespace oriel::comm
