// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "oriel/error.hpp"

namespace oriel::comm {

/// Remembers `error` as the calling thread's last error and logs it as a warning.
void remember_error(const Error& error);
/// Remembers `error`, which was logged where it occurred, without logging it again.
void remember_known_error(const Error& error);

/// Returns the text of the calling thread's last error; empty if there was none. Valid until this
/// thread's next remember_error() or remember_known_error().
const char* last_error_text();

/// Keeps `text` for the calling thread, so that C code can read it. Valid until this thread's next
/// hold_text().
const char* hold_text(std::string text);

}  // namespace oriel::comm
