// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <sys/types.h>

#include "oriel/error.hpp"

/// Helpers for child processes, ports and durations, shared by the tools.
namespace oriel::tools {

/// Describes waitpid's status word: "exited with status 3", "was killed by signal 9 (SIGKILL)".
std::string describe_end(int wait_status);

/// Returns the status that a shell would report: the exit status, or 128 + the signal's number.
int shell_status(int wait_status);

/// Returns "SIGTERM" for 15; "signal 99" for a number without a name.
std::string signal_name(int signal);

/// Returns a TCP port that was free on all IPv4 addresses a moment ago.
Result<std::uint16_t> find_free_port();

/// Converts seconds from a command line to whole nanoseconds. Fails if they are negative, not a
/// number, or longer than a year.
Result<std::int64_t> seconds_to_nanoseconds(double seconds, const std::string& option);

}  // namespace oriel::tools
