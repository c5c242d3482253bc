// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "info/flight_files.hpp"

namespace oriel::tools {

/// Compares the calls of the ranks of each communicator and returns the differences as text. Fails
/// if two files are of one rank or disagree on the number of ranks.
Result<std::string> compare_flights(const std::vector<FlightFile>& files);

}  // namespace oriel::tools
