// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "oriel/error.hpp"

#include "comm/request/flight_recorder.hpp"

namespace oriel::tools {

/// A collective, send or receive of one rank.
struct NotedCall {
  comm::FlightKind kind = comm::FlightKind::collective;
  kernels::CollectiveCall call;  ///< send, receive: the peer as `root`
  std::uint64_t number = 0;
  std::optional<bool> ended;  ///< GPU ranks do not know
};

/// What a rank has written to ORIEL_DUMP_DIR. Nothing in it goes to a terminal unchecked: texts
/// have printable characters only, ranks are below `ranks`.
struct FlightFile {
  std::string path;
  std::string communicator;  ///< its number, in hexadecimal
  std::string name;
  std::string reason;
  int rank = 0;
  int ranks = 1;
  std::vector<NotedCall> calls;
};

/// Reads one file of a flight recorder. Errors name the file and what is wrong in it.
Result<FlightFile> read_flight_file(const std::string& path);

/// Returns the paths of the files of flight recorders in a folder, sorted.
Result<std::vector<std::string>> find_flight_files(const std::string& folder);

}  // namespace oriel::tools
