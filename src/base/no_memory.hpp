// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "oriel/error.hpp"

#include "base/short_memory.hpp"

namespace oriel {

/// The error of a step that had no memory, made as soon as there is enough for itself.
inline Error no_memory_error() {
  return despite_short_memory([] { return Error(ErrorCode::system, "out of memory"); });
}

}  // namespace oriel
