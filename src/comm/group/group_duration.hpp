// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "comm/group/job.hpp"

namespace oriel::comm {

/// Returns the estimated time in microseconds of the calls of a group; empty if it has no calls.
/// Calls of one communicator are taken to run one after the other, and communicators at the same
/// time. Starts, splits and registrations do not count.
std::optional<double> estimate_group_us(GroupJobs& jobs);

}  // namespace oriel::comm
