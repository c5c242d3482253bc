// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "oriel/api.hpp"

namespace oriel {

/// The version of the library in use, such as "0.1.0". Local; any thread; never fails.
ORIEL_API const char* version();

/// The version of NCCL whose C interface the library has, in NCCL's number format.
inline constexpr int kNcclVersion = 22809;

}  // namespace oriel
