// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/plan/arguments.hpp"

namespace oriel::kernels {

/// Runs a one-shot all-reduce of a CPU rank in cache lines (all_reduce_host.hpp documents the
/// call). Every rank sends all its input to every other rank, and each rank reduces all inputs
/// itself. Input and output are accessed only locally, so neither need be registered.
///
/// Suits messages so small that the handshakes of streaming would cost more than the copies. Faster
/// from 48 bytes on than packets, which carry 8 payload bytes of 16 (eager lines carry 56 of 64).
/// Packets are faster up to 32 bytes (docs/notes/cpu.md). Packets are packed and reduced element by
/// element.
bool eager_on_host(const AllReduceArguments& arguments);

}  // namespace oriel::kernels
