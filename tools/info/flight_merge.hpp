// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "info/flight_files.hpp"

namespace oriel::tools {

/// Compares what the ranks of each communicator have called, and returns what differs as a text.
/// Two files of one rank are an error.
Result<std::string> compare_flights(const std::vector<FlightFile>& files);

}  // namespace oriel::tools
