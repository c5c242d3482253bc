// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "nccl.h"
#include "oriel/error.hpp"

#include "comm/communicator/rank_communicator.hpp"

namespace oriel::comm {

/// Reads an ncclConfig_t of this version or an older, shorter one; null sets nothing. Each field
/// that is set is honoured, or refused by name.
Result<CommunicatorOptions> read_config(const ncclConfig_t* config);

/// Whether a config, perhaps one that read_config refuses, asks for a blocking communicator; also
/// true of what is no config.
bool asks_for_blocking(const ncclConfig_t* config);

}  // namespace oriel::comm
