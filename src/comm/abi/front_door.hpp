// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "nccl.h"
#include "oriel/error.hpp"

#include "boot/auth/unique_id_format.hpp"

/// What the C and the C++ interface have in common.
namespace oriel::comm {

/// An id for a communicator whose meeting this process serves.
Result<boot::UniqueId> make_unique_id();

/// Refuses all but 0 <= rank < size <= boot::kMaxRanks.
Status check_rank(int rank, int size);

/// Ends the communicator of `handle`, if it is one, for a call that has no memory.
void end_without_memory(ncclComm_t handle) noexcept;

}  // namespace oriel::comm
