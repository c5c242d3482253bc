// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "nccl.h"
#include "oriel/error.hpp"

#include "comm/communicator/rank_communicator.hpp"

namespace oriel::comm {

/// Reads an ncclConfig_t of any version since NCCL 2.14; null sets nothing. Hints that do not apply
/// are ignored, with one log line each. Returns invalid_argument if the structure was not
/// initialised, or if `blocking` is neither 0 nor 1. `rank` is for the log.
Result<CommunicatorOptions> read_config(const ncclConfig_t* config, int rank = -1);

/// Returns whether a config asks for a blocking communicator, even if read_config() refuses it.
/// Also true for null and for an uninitialised structure.
bool asks_for_blocking(const ncclConfig_t* config);

}  // namespace oriel::comm
