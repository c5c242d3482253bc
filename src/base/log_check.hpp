// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "oriel/error.hpp"

namespace oriel {

/// Whether ORIEL_LOG_FILE, if anything is to be logged, is of a kind that can be a log: a file, a
/// terminal or other character device, or a pipe with a reader. A path that cannot be opened is no
/// error; the lines go to standard error then.
Status check_log();

}  // namespace oriel
