// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "comm/request/call_activity.hpp"
#include "comm/request/call_request.hpp"
#include "kernels/plan/call_record.hpp"

namespace oriel::comm {

/// Returns "an all-reduce", "a broadcast".
std::string with_article(std::string_view name);

/// Returns a call as named in messages: "an all-reduce (sum) of 100 x f32", "a broadcast of 7 x u8
/// with root 2".
std::string text_of(const kernels::CollectiveCall& call);

/// Returns "a send", "a receive", or "a group of 2 sends and 1 receives".
std::string text_of(PointToPointCounts counts);

/// Returns "no call", "a collective", "a send to rank 3", or a group as above.
std::string text_of(const CallActivity& activity);

}  // namespace oriel::comm
