// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/plan/arguments.hpp"

namespace oriel::kernels {

/// Runs an all-reduce, reduce, reduce-scatter, all-gather or all-to-all of a CPU rank in one trip
/// of cache lines (all_reduce_host.hpp documents the call). Every rank sends all data to their
/// receivers at once, and each receiver reduces all inputs itself. Input and output are accessed
/// only locally, so neither need be registered.
///
/// Suits messages so small that handshakes or credits would cost more than the copies. In an
/// all-reduce, lines are faster than packets from 48 bytes on: lines carry 56 payload bytes of 64,
/// packets 8 of 16. Up to 32 bytes packets are faster (docs/notes/cpu.md).
bool eager_on_host(const AllReduceArguments& arguments);

}  // namespace oriel::kernels
