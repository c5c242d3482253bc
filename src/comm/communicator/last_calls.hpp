// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "oriel/error.hpp"

#include "comm/communicator/communicator_parts.hpp"
#include "comm/request/call_activity.hpp"
#include "kernels/plan/call_record.hpp"

/// What the CPU ranks of an LSA team have noted of the calls that they are in.
namespace oriel::comm {

/// Returns the record of the last call of the LSA team's rank of this index; null on a GPU and
/// where a rank is alone.
kernels::CallRecord* call_record(const CommunicatorParts& parts, int index);

/// Returns the last collective of that rank, if it has begun one.
std::optional<kernels::NumberedCall> last_call(const CommunicatorParts& parts, int index);

/// Returns what the thread of that rank is in; nothing for GPU ranks.
std::optional<CallActivity> activity_of(const CommunicatorParts& parts, int index);

/// Returns an error that names two ranks of this team that are in different calls, if there are
/// two.
std::optional<Error> different_calls(const CommunicatorParts& parts);

/// Returns an error if `rank`, for which this one has long waited, is in a later call already.
std::optional<Error> left_behind_by(const CommunicatorParts& parts, int rank);

}  // namespace oriel::comm
