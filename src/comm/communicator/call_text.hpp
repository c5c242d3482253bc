// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "kernels/plan/call_record.hpp"

namespace oriel::comm {

/// Returns a call as messages name it: "an all-reduce (sum) of 100 x f32".
std::string text_of(const kernels::CollectiveCall& call);

}  // namespace oriel::comm
