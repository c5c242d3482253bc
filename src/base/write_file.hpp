// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "oriel/error.hpp"

namespace oriel {

/// Writes `text` to what `path` names. A file, or one that is not there yet, is replaced in one
/// step, so that nobody reads half of it and several processes may write it at once. What a
/// symbolic link names, or a device such as /dev/stdout, stays what it is and is written in place.
/// Pipes and sockets are refused. Errors name path and errno.
Status write_file(const std::string& path, const std::string& text);

/// The same for what is to be a file: a link or device that `path` names is replaced by it.
Status replace_file(const std::string& path, const std::string& text);

}  // namespace oriel
