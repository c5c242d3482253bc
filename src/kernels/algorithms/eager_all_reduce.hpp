// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/arguments.hpp"

/// The line algorithms of a CPU rank (see all_reduce_host.hpp for what the calls promise). They
/// read the input and write the output only locally, so neither need be registered, and are for
/// messages so small that the handshakes of streaming would cost more than the copies.
namespace oriel::kernels {

/// Every rank sends all its input to every other rank, and each reduces everything by itself.
void one_shot_on_host(const AllReduceArguments& arguments);

/// Rank r owns the r-th share of the message (AllReduceArguments::share lines): every rank sends
/// each owner its share of the input; the owner reduces it and sends the result to all.
void two_shot_on_host(const AllReduceArguments& arguments);

}  // namespace oriel::kernels
