// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "nccl.h"
#include "oriel/error.hpp"

#include "boot/auth/unique_id_format.hpp"

/// Functions that the C and the C++ interface share.
namespace oriel::comm {

/// Makes the id of a communicator. This process serves the rendezvous of its ranks.
Result<boot::UniqueId> make_unique_id();

/// Returns invalid_argument unless 0 <= rank < size <= boot::kMaxRanks.
Status check_rank(int rank, int size);

/// Aborts the communicator of `handle`, if it is valid, after a call has run out of memory.
void end_without_memory(ncclComm_t handle) noexcept;

}  // namespace oriel::comm
