// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "oriel/error.hpp"

#include "comm/communicator/communicator_parts.hpp"
#include "comm/request/call_activity.hpp"
#include "kernels/plan/call_record.hpp"

/// Reads the records that the CPU ranks of an LSA team keep of their calls.
namespace oriel::comm {

/// Returns the call record of the LSA team's rank `index`. Returns null for GPU ranks, and before
/// the scratch memory is registered.
kernels::CallRecord* call_record(const CommunicatorParts& parts, int index);

/// Returns the last collective of the team's rank `index`, if it has started one.
std::optional<kernels::NumberedCall> last_call(const CommunicatorParts& parts, int index);

/// Returns the current activity of that rank's thread; nothing for GPU ranks.
std::optional<CallActivity> activity_of(const CommunicatorParts& parts, int index);

/// Returns an error that names two ranks of this team in different calls, if there are any.
std::optional<Error> different_calls(const CommunicatorParts& parts);

/// Returns an error if `rank`, for which this rank has long waited, is already in a later call.
std::optional<Error> left_behind_by(const CommunicatorParts& parts, int rank);

/// Returns an error if this rank waits in a collective for `rank`, which is in a send to this rank
/// or a receive from it. Certain if it lasts, because such a call moves what has been sent, and
/// then only waits for this rank.
std::optional<Error> held_by_transfer_of(const CommunicatorParts& parts, int rank);

}  // namespace oriel::comm
