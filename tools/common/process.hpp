// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <sys/types.h>

#include "oriel/error.hpp"

/// What the tools share about child processes.
namespace oriel::tools {

/// How a process ended, from waitpid's status word: "exited with status 3", "was killed by
/// signal 9 (SIGKILL)".
std::string describe_end(int wait_status);

/// The status a shell would report: the exit status, or 128 + the signal's number.
int shell_status(int wait_status);

/// "SIGTERM" for 15; "signal 99" for a number without a name.
std::string signal_name(int signal);

/// A TCP port of the loopback address that was free a moment ago.
Result<std::uint16_t> find_free_port();

/// Seconds as people write them on a command line, in a whole number of nanoseconds.
/// Refuses what is negative, not a number, or longer than a year.
Result<std::int64_t> seconds_to_nanoseconds(double seconds, const std::string& option);

}  // namespace oriel::tools
