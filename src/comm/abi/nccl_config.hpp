// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "nccl.h"
#include "oriel/error.hpp"

#include "comm/communicator/rank_communicator.hpp"

namespace oriel::comm {

/// Reads an ncclConfig_t of any version since NCCL 2.14; null sets nothing. Hints that do not apply
/// are ignored, with a line of the log for each. Refused are a structure that was not initialised
/// and a `blocking` other than 0 and 1. `rank` is for the log.
Result<CommunicatorOptions> read_config(const ncclConfig_t* config, int rank = -1);

/// Whether a config, perhaps one that read_config refuses, asks for a blocking communicator; also
/// true of what is no config.
bool asks_for_blocking(const ncclConfig_t* config);

}  // namespace oriel::comm
