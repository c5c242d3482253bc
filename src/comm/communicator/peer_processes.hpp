// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "comm/communicator/communicator_parts.hpp"

/// Finds the CPU ranks of a team that can read each other's memory outside windows.
namespace oriel::comm {

/// Writes this rank's ReadingProbe into its scratch memory. Call it before that memory is
/// registered as a window.
void write_reading_probe(CommunicatorParts& parts);

/// Tries to read the probed word of each other rank of the team. Call it once all probes are
/// written. Sets parts.processes, which may differ among ranks: one rank may read memory that
/// another may not.
void find_peer_processes(CommunicatorParts& parts);

}  // namespace oriel::comm
