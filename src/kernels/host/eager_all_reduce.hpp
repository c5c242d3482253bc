// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/plan/arguments.hpp"

namespace oriel::kernels {

/// One-shot all-reduce of a CPU rank in cache lines (see all_reduce_host.hpp for what the call
/// promises): every rank sends all its input to every other rank, and each reduces everything by
/// itself. Reads the input and writes the output only locally, so neither need be registered. For
/// messages so small that the handshakes of streaming would cost more than the copies; faster there
/// than packets, which carry half the payload and are packed and reduced element by element.
bool eager_on_host(const AllReduceArguments& arguments);

}  // namespace oriel::kernels
