// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "oriel/error.hpp"

namespace oriel {

/// Writes `text` to `path`. A regular or missing file is replaced atomically, so no reader sees
/// half of it and several processes may write it at once. The target of a symbolic link, or a
/// device such as /dev/stdout, is written in place. Pipes and sockets are refused. Errors name path
/// and, if a system call failed, errno.
Status write_file(const std::string& path, const std::string& text);

/// Writes a regular file; replaces a link or device at `path`, atomically.
Status replace_file(const std::string& path, const std::string& text);

}  // namespace oriel
